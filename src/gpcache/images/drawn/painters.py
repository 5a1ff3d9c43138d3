"""The painters of all pictures: close-ups of materials, scenes, soap bubbles and a clock."""

from __future__ import annotations

from math import cos, pi, sin, tau

import numpy as np
from PIL import Image, ImageDraw

from gpcache.images.drawn.canvas import (
    HEIGHT,
    WIDTH,
    Colours,
    Field,
    Random,
    blend,
    cells,
    choose_palette,
    frame,
    noise,
    plane,
    ramp,
    random_value,
    sampled,
    shade,
    smooth,
)

Point = tuple[float, float]
DETAIL = 2  # paint at twice the size, for smooth edges
PAPER = (WIDTH * DETAIL, HEIGHT * DETAIL)
TILE = (256, 256)


def bricks(rng: Random) -> Colours:
    """A wall in running bond, with rough faces and sunken mortar."""
    u, v = plane(rng, 3, 18, rng.normal(0, 0.25))
    u, v = u + 0.04 * noise(rng, 2, size=40), v + 0.04 * noise(rng, 2, size=40)
    row = np.floor(v)
    length = rng.uniform(2, 3.2)
    u = u / length + 0.5 * (row % 2) + 0.06 * random_value(rng, row)
    column = np.floor(u)
    x, y = u - column, v - row
    edge = np.minimum(np.minimum(x, 1 - x) * length, np.minimum(y, 1 - y))
    rough, joint = noise(rng, 0.9, size=60), rng.uniform(0.04, 0.1)
    face = smooth(edge + 0.015 * rough, joint, joint + 0.07)
    clay = choose_palette(rng, "clay")
    tone = 0.75 * random_value(rng, row, column) + 0.12 + 0.08 * noise(rng, 1.3)
    mortar = choose_palette(rng, "mortar")[0] * (1 + 0.06 * rough[..., None])
    height = 2.2 * face + 0.25 * rough + 0.8 * np.minimum(edge, 0.3)
    return blend(mortar * 0.85, ramp(tone, clay), face) * shade(rng, height, 0.5)


def wood(rng: Random) -> Colours:
    """Planks with cathedral grain, fibres and a knot here and there."""
    turn = rng.choice([0.0, pi / 2]) + rng.normal(0, 0.2)
    u, v = plane(rng, 0.8, 6, turn)
    plank = np.floor(v)
    y, gap = v - plank, np.abs(v - np.round(v))
    middle, apex = random_value(rng, plank) * 2.4 - 0.7, random_value(rng, plank + 7) * 6
    bend = 0.08 * noise(rng, 1.6, stretch=5, turn=turn) + 0.05 * noise(rng, 2, stretch=2, turn=turn)
    along = u % 6 - apex
    rings = np.sqrt((y - middle + bend) ** 2 + (0.09 * along) ** 2) * rng.uniform(5, 12)
    dark = np.zeros_like(u)
    for _ in range(rng.integers(0, 4)):
        j, i = rng.integers(u.shape[0]), rng.integers(u.shape[1])
        far = np.hypot((u - u[j, i]) * 0.7, v - v[j, i]) / rng.uniform(0.08, 0.16)
        near = np.exp(-(far**2))
        rings, dark = rings + 2.4 * near, dark + 0.6 * near**3
    grain = 0.5 + 0.5 * np.sin(2 * pi * rings)
    fibre = noise(rng, 0.6, size=30, stretch=18, turn=turn)
    tone = (
        0.5 + 0.38 * (grain**2 - 0.4) + 0.09 * fibre + 0.25 * (random_value(rng, plank + 3) - 0.5)
    )
    timber = choose_palette(rng, "timber")
    seam = smooth(gap, 0.005, 0.025 + 0.015 * rng.random())
    light = shade(rng, 0.5 * fibre + 3 * seam, 0.12)
    return ramp(tone - dark, timber) * (0.3 + 0.7 * seam[..., None]) * light


def marble(rng: Random) -> Colours:
    """A polished slab: clouds, and veins that run through them in one direction."""
    turn, stretch = rng.uniform(0, pi), rng.uniform(1.2, 3)
    stone = choose_palette(rng, "stone")
    vein = choose_palette(rng, "vein")[0]
    if abs(vein.mean() - stone.mean()) < 0.3:
        vein = 1 - vein
    base = ramp(0.5 + 0.22 * noise(rng, 1.9, size=220, stretch=stretch, turn=turn), stone)
    for width in (rng.uniform(0.05, 0.12), rng.uniform(0.02, 0.05)):
        field = noise(rng, 2.1, size=rng.uniform(90, 240), stretch=stretch, turn=turn)
        field = field + 0.1 * noise(rng, 1.2, size=50)
        line = np.exp(-np.abs(field) / width) + 0.35 * np.exp(-np.abs(field) / (5 * width))
        strength = np.clip(0.55 + 0.3 * noise(rng, 2, size=200), 0.05, 1)
        base = blend(base, vein, np.clip(line * strength, 0, 0.9))
    return base * (1 + 0.015 * noise(rng, 0.5)[..., None])


def knitting(rng: Random) -> Colours:
    """Stocking stitch: columns of V-shaped stitches, plain, striped or patterned."""
    u, v = plane(rng, 6, 30, rng.normal(0, 0.5))
    v = v * rng.uniform(1.0, 1.3) + 0.12 * noise(rng, 2.2)
    u = u + 0.12 * noise(rng, 2.2)
    column = np.floor(u)
    x = u - column - 0.5
    rise = v - 1.1 * np.abs(x)
    row = np.floor(rise)
    across, along = (rise - row - 0.5) * 2, np.abs(x) * 2
    bulge = np.sqrt(1 - across**2 * 0.9) * np.sin(3.14 * np.clip(along, 0, 1)) ** 0.45
    fibre = np.sin(28 * (across + 1.8 * along)) * 0.5 + noise(rng, 0.4, size=8)
    yarn = choose_palette(rng, "yarn")
    motif, period = int(rng.integers(0, 4)), int(rng.integers(6, 11))
    i, j = column.astype(int), row.astype(int)
    if motif == 0:
        thread = np.zeros_like(i)
    elif motif == 1:
        thread = (j // rng.integers(2, 5)) % 3
    else:
        far = np.abs(i % period - period // 2) + np.abs(j % period - period // 2) * (motif - 1)
        thread = np.where(far % 4 == 0, 1, np.where(j % (2 * period) < 2, 2, 0))
    colour = rng.permutation(yarn)[thread] * (0.93 + 0.05 * fibre[..., None])
    height = 4 * bulge + 0.25 * fibre + 3 * noise(rng, 2.4)
    lit: Colours = colour * (0.35 + 0.65 * bulge[..., None])
    return lit * shade(rng, height, 0.22)


def tartan(rng: Random) -> Colours:
    """Checked cloth in twill, with soft folds."""
    u, v = plane(rng, 40, 190, rng.uniform(-0.7, 0.7))
    fold = noise(rng, 2.6, size=250, stretch=2, turn=rng.uniform(0, pi))
    amount = rng.uniform(0.5, 4)
    u, v = u + amount * fold, v + 0.5 * amount * noise(rng, 2.6, size=250)
    colours = choose_palette(rng, "tartan")
    widths, names = rng.integers(2, 15, 7), rng.permutation(np.array([0, 0, 1, 1, 2, 2, 3]))
    half = np.repeat(names, np.where(names == 3, 2, widths))
    sett = np.concatenate([half, half[::-1]])
    i, j = np.floor(u).astype(int), np.floor(v).astype(int)
    over = (i + j) % 4 < 2
    colour = np.where(over[..., None], colours[sett[i % len(sett)]], colours[sett[j % len(sett)]])
    thread = np.where(over, np.sin(pi * (u - i)), np.sin(pi * (v - j)))
    wool = noise(rng, 0.5, size=12)
    light = shade(rng, rng.uniform(6, 25) * fold, 0.35)
    lit: Colours = colour * (0.72 + 0.3 * thread + 0.05 * wool)[..., None] * light
    return lit


def pebbles(rng: Random) -> Colours:
    """Round stones of many sizes and colours, dry or wet."""
    u, v = plane(rng, 3, 20, rng.uniform(0, pi))
    u, v = u + 0.12 * noise(rng, 3, size=60), v + 0.12 * noise(rng, 3, size=60)
    near, next_, stone = cells(rng, u, v)
    gap = next_ - near
    dome = np.sqrt(np.clip(gap, 0, 1)) * (1 - 0.35 * near)
    tone = 0.8 * random_value(rng, stone) + 0.1 + 0.06 * noise(rng, 0.9, size=20)
    colours = choose_palette(rng, "pebbles")
    mineral = 1 + 0.1 * noise(rng, 0.7, size=15) * random_value(rng, stone + 9)
    height = 9 * dome + 0.15 * noise(rng, 0.8)
    light, wet = shade(rng, height, 0.45), rng.uniform(0, 0.35)
    colour = ramp(tone, colours) * mineral[..., None] * light
    colour = colour * (0.15 + 0.85 * smooth(gap, 0.0, 0.22)[..., None])
    return colour + wet * smooth(light[..., 0], 1.35, 1.8)[..., None]


def sea(rng: Random) -> Colours:
    """Waves that shrink towards the horizon, and the light of the sky on them."""
    x, y = frame()
    horizon = rng.uniform(-0.75, -0.15)
    below = np.maximum(y - horizon, 1e-3)
    depth = rng.uniform(12, 30) / (below + 0.05)
    near = smooth(below, 0, 0.5)
    waves = np.zeros_like(x)
    turn = rng.normal(0, 0.4)
    for scale, slope in ((1.0, 2.4), (2.6, 1.9)):
        tile = noise(rng, slope, size=60, stretch=0.45, turn=turn, shape=TILE)
        waves += sampled(tile, x * depth * scale * 2 + 300, depth * scale * 3) / scale
    slope_ = np.gradient(waves, axis=0) * (0.25 + 1.6 * near)
    water = choose_palette(rng, "water")
    tone = 0.42 + 0.55 * slope_ - 0.22 * near + 0.05 * waves
    picture = ramp(tone, water)
    sun = np.exp(-((x - rng.uniform(-0.5, 0.5)) ** 2) / rng.uniform(0.01, 0.15))
    glitter = smooth(slope_, 0.45, 0.8) * sun * rng.uniform(0.1, 0.9)
    foam = smooth(waves + 0.6 * noise(rng, 0.8, size=20), rng.uniform(2.2, 3.4), 3.6) * near
    picture = blend(
        picture + glitter[..., None], np.array([0.93, 0.96, 0.97], np.float32), foam * 0.8
    )
    sky = blend(water[3], water[2] * 0.6 + 0.4, np.clip((horizon - y) * 2.2, 0, 1))
    return blend(picture, sky, smooth(horizon - y, -0.006, 0.006))


def sunset(rng: Random) -> Colours:
    """Clouds lit from below by a low sun, over dark hills."""
    x, y = frame()
    ground = rng.uniform(0.2, 0.55)
    above = np.maximum(ground - y, 0.0)
    sky = choose_palette(rng, "evening sky")
    picture = ramp(above * rng.uniform(0.9, 1.5) + 0.06 * noise(rng, 2.5), sky)
    far = 22 / (above + 0.16)
    tile = noise(rng, rng.uniform(1.5, 2.0), size=110, shape=TILE)
    cloud = sampled(tile, x * far * 2.6 + 300, far * 4.2) + rng.uniform(-0.5, 0.7)
    cloud = smooth(cloud, 0.0, 1.8) * smooth(above, 0.0, 0.12)
    centre = rng.uniform(-0.5, 0.5), ground - rng.uniform(-0.02, 0.2)
    distance = np.hypot(x - centre[0], y - centre[1])
    glow = np.exp(-distance / rng.uniform(0.15, 0.5))
    lit = np.clip(0.15 + 1.1 * glow + 0.8 * np.gradient(cloud, axis=0) * 4, 0, 1)
    picture = blend(picture, ramp(1 - lit, sky[[0, 1, 2, 3]]) * 0.95, cloud * 0.85)
    picture = picture + 0.5 * glow[..., None] * sky[0] * (1 - 0.6 * cloud[..., None])
    disc = smooth(-distance, -0.055, -0.048) * (1 - 0.7 * cloud)
    picture = blend(np.minimum(picture, 1), np.array([1.2, 1.1, 0.95], np.float32), disc)
    for layer in range(rng.integers(1, 4)):
        profile = noise(rng, 1.7, size=200, shape=(1, WIDTH))[0]
        ridge = ground + 0.07 * layer + (0.035 + 0.02 * layer) * profile[None, :]
        dark = sky[4] * (0.75 - 0.22 * layer) + 0.12 * sky[1] * (1 - 0.4 * layer)
        picture = blend(picture, dark, smooth(y - ridge, -0.004, 0.004))
    return picture


def grass(rng: Random) -> Colours:
    """A meadow from the side or from above: blades, and flowers on some days."""
    green = choose_palette(rng, "grass")
    image = Image.new("RGB", PAPER, _rgb(green[0]))
    draw = ImageDraw.Draw(image)
    reach, wind = rng.uniform(50, 200), rng.normal(0, 0.35)
    count = int(rng.uniform(500, 800) * (130 / reach))
    bottoms = np.sort(rng.uniform(0.05, 1.45, count)) * PAPER[1]
    lefts, tones = rng.uniform(-20, PAPER[0] + 20, count), rng.random(count)
    lengths, leans = reach * rng.uniform(0.5, 1.3, count), wind + rng.normal(0, 0.28, count)
    widths = rng.uniform(1.5, 5, count) * reach / 80
    nearness = bottoms / PAPER[1] / 1.45
    lengths, widths = lengths * (0.35 + nearness), widths * (0.35 + nearness)
    colours = ramp(np.clip(0.15 + 0.6 * tones * (0.5 + nearness) + 0.2 * nearness, 0, 1), green)
    heads = choose_palette(rng, "flowers")
    flowers = rng.choice([0.0, 0.01, 0.04])
    for n in range(count):
        x, y, length, lean, wide = lefts[n], bottoms[n], lengths[n], leans[n], widths[n]
        tip = x + length * sin(lean * 1.6), y - length * cos(lean * 1.6)
        bend = x + 0.5 * length * sin(lean * 0.6), y - 0.55 * length * cos(lean * 0.6)
        left, right = (bend[0] - wide * 0.8, bend[1]), (bend[0] + wide * 0.8, bend[1])
        blade = [(x - wide, y), left, tip, right, (x + wide, y)]
        draw.polygon(blade, fill=_rgb(colours[n]))
        draw.line([(x, y), bend, tip], fill=_rgb(colours[n] * 0.82))
        if tones[n] < flowers:
            _flower(draw, tip, reach * rng.uniform(0.08, 0.16), heads, rng)
    return _painted(image)


def leaves(rng: Random) -> Colours:
    """Fallen leaves on top of each other, with veins and shadows."""
    earth = choose_palette(rng, "earth")[0]
    image = Image.new("RGB", PAPER, _rgb(earth))
    draw = ImageDraw.Draw(image)
    tints = choose_palette(rng, "leaves")
    reach = rng.uniform(50, 190)
    for _ in range(int(1_100_000 / reach**2) + 12):
        centre, turn = rng.uniform((-20, -20), (PAPER[0] + 20, PAPER[1] + 20)), rng.uniform(0, tau)
        tint = tints[rng.integers(len(tints))] * rng.uniform(0.75, 1.15)
        outline = _leaf(int(rng.integers(4)), reach * rng.uniform(0.7, 1.2), rng.uniform(0.55, 1.0))
        shape = outline @ np.array([[cos(turn), sin(turn)], [-sin(turn), cos(turn)]]) + centre
        draw.polygon((shape + reach * 0.05).ravel().tolist(), fill=_rgb(earth * 0.45))
        draw.polygon(shape.ravel().tolist(), fill=_rgb(tint), outline=_rgb(tint * 0.75))
        half = len(shape) // 2
        draw.line([tuple(shape[0]), tuple(shape[half])], fill=_rgb(tint * 0.62), width=2)
        for side in np.linspace(0.12, 0.42, 5 if reach > 90 else 0):
            step = int(side * len(shape))
            root = shape[0] + (shape[half] - shape[0]) * (side * 1.5 - 0.1)
            for end in (shape[step], shape[-step]):
                vein = root + (end - root) * 0.8
                draw.line([tuple(root), tuple(vein)], fill=_rgb(tint * 0.78))
    picture = _painted(image)
    return picture * (1 + 0.08 * noise(rng, 1.2, size=30))[..., None]


def bubbles(rng: Random) -> Colours:
    """Soap bubbles in front of a blurred background."""
    x, y = frame()
    back = choose_palette(rng, "bubbles")
    picture = ramp(0.5 + 0.25 * noise(rng, 2.8, size=200), back)
    for _ in range(rng.integers(9, 26)):
        radius = rng.uniform(0.03, 0.2)
        cx, cy = rng.uniform(-0.7, 0.7), rng.uniform(-0.55, 0.55)
        far, angle = np.hypot(x - cx, y - cy) / radius, np.arctan2(y - cy, x - cx)
        inside = smooth(-far, -1.02, -0.98)
        rim = np.clip(far, 0, 1) ** 5
        phase = 6 * far**2 + 1.5 * np.sin(angle + rng.uniform(0, tau))
        film = np.stack([0.55 + 0.45 * np.cos(phase + shift) for shift in (0, 2.1, 4.2)], -1)
        picture = blend(picture, film, inside * (0.06 + 0.6 * rim))
        for hx, hy, wide in ((-0.45, -0.45, 0.16), (0.5, 0.5, 0.09)):
            spot = np.hypot((x - cx) / radius - hx, (y - cy) / radius - hy)
            picture = picture + (0.8 * inside * np.exp(-((spot / wide) ** 2)))[..., None]
    return picture


def clock(rng: Random) -> Colours:
    """A wall clock at any time of the day."""
    wall = choose_palette(rng, "wall")
    back = (ramp(frame()[1] + 0.5, wall) * 255).astype(np.uint8)
    image = Image.fromarray(back).resize(PAPER)
    draw = ImageDraw.Draw(image)
    r, x, y = rng.uniform(110, 215), rng.uniform(220, 420), rng.uniform(200, 280)

    def hand(angle: float, start: float, end: float, width: int, colour: str = "#221e1c") -> None:
        across, up = r * sin(angle), -r * cos(angle)
        line = [x + start * across, y + start * up, x + end * across, y + end * up]
        draw.line(line, fill=colour, width=width)

    for size, colour in ((1.12, "#33291f"), (1.0, "#f5f0e4")):
        draw.circle((x, y), r * size, fill=colour)
    for minute in range(60):
        hand(minute * tau / 60, 0.92 - 0.1 * (minute % 5 == 0), 0.96, 2 + 6 * (minute % 5 == 0))
    time = rng.uniform(0, 12)
    hand(time * tau / 12, -0.1, 0.5, 12)
    hand(time * tau, -0.1, 0.78, 7)
    hand(rng.uniform(0, tau), -0.2, 0.85, 3, "#a81f1f")
    draw.circle((x, y), 11, fill="#a81f1f")
    return _painted(image)


def _leaf(kind: int, reach: float, width: float) -> Field:
    """The outline (48, 2) of a leaf along x, stalk first: beech, oak, birch or maple."""
    t = np.linspace(0, 1, 24, endpoint=False)
    if kind == 3:
        angle = np.linspace(-pi, pi, 48, endpoint=False)
        lobes = [(0.0, 1.0), (0.95, 0.9), (-0.95, 0.9), (1.9, 0.6), (-1.9, 0.6)]
        spikes = [long * (1 - np.abs(angle - at) / 0.75) for at, long in lobes]
        radius = 0.6 * reach * np.maximum(0.32, np.max(spikes, 0)) * (1 + 0.06 * np.cos(30 * angle))
        return np.stack([radius * np.cos(angle), radius * np.sin(angle)], -1)
    edge = (1.0, 1 + 0.28 * np.sin(8 * pi * t), 1 + 0.07 * (-1) ** np.arange(24))[kind]
    half = 0.34 * reach * width * edge * np.sin(pi * t ** (0.8, 1.25, 0.6)[kind]) ** 0.9
    upper, lower = np.stack([t, half], -1), np.stack([1 - t, -half[::-1]], -1)
    return np.concatenate([upper, lower]) * [reach, 1] - [reach / 2, 0]


def _flower(draw: ImageDraw.ImageDraw, at: Point, r: float, head: Colours, rng: Random) -> None:
    petals = int(rng.integers(6, 12))
    for angle in rng.uniform(0, tau) + np.arange(petals) * tau / petals:
        petal = at[0] + r * cos(angle), at[1] + 0.8 * r * sin(angle)
        draw.circle(petal, r * 0.5, fill=_rgb(head[0]))
    draw.circle(at, r * 0.45, fill=_rgb(head[-1]))


def _rgb(colour: Colours) -> tuple[int, int, int]:
    red, green, blue = (np.clip(colour, 0, 1) * 255).astype(int).tolist()
    return red, green, blue


def _painted(image: Image.Image) -> Colours:
    return np.asarray(image.reduce(DETAIL), np.float32) / 255
