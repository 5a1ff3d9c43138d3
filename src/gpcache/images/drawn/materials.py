"""Close-ups of materials: bricks, wood, marble, knitting, tartan and pebbles."""

from __future__ import annotations

from math import pi

import numpy as np

from gpcache.images.drawn.canvas import (
    Colours,
    Random,
    blend,
    cells,
    choose_palette,
    light_angle,
    noise,
    plane,
    ramp,
    random_value,
    shade,
    smooth,
)


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
    clay = choose_palette(
        rng,
        "6e2a1f 9c4431 b85c41 c9775a / 5a3a2c 86573d a9744f c59a71 / "
        "b08a4f c9a566 dcc08a / 8d8d8a adaca6 c9c6bd / 7a2f2a a24a3b 6b4038 d08b6c / "
        "d8d2c6 e6e1d6 f1ede4",
    )
    tone = 0.75 * random_value(rng, row, column) + 0.12 + 0.08 * noise(rng, 1.3)
    mortar = choose_palette(rng, "b9b2a5 / d9d5cc / 77716a / a59683")[0] * (
        1 + 0.06 * rough[..., None]
    )
    height = 2.2 * face + 0.25 * rough + 0.8 * np.minimum(edge, 0.3)
    return blend(mortar * 0.85, ramp(tone, clay), face) * shade(height, light_angle(rng), 0.5)


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
    timber = choose_palette(
        rng,
        "5b3a20 8f6236 b98a52 d8b077 / 2f1d14 4a2f20 6b4a31 8a6546 / "
        "9c6b3c c9995b e6c48c / 6a2f1c 95492b b96a41 d09061 / "
        "57524b 7d776d a39c90 c4beb2 / b89468 d9bd92 eddcbb",
    )
    seam = smooth(gap, 0.005, 0.025 + 0.015 * rng.random())
    height = 0.5 * fibre + 3 * seam
    light = shade(height, light_angle(rng), 0.12)
    return ramp(tone - dark, timber) * (0.3 + 0.7 * seam[..., None]) * light


def marble(rng: Random) -> Colours:
    """A polished slab: clouds, and veins that run through them in one direction."""
    turn, stretch = rng.uniform(0, pi), rng.uniform(1.2, 3)
    stone = choose_palette(
        rng,
        "dcdcd8 eceae6 f7f6f3 / 1b1c20 26282c 3a3c40 / 2f5a49 3f7560 6a9c86 / "
        "d9b7a6 e6cbbc f2e2d8 / c9b48c dfcfae efe5cd / 6d7f92 8fa0b1 b7c3cd",
    )
    vein = choose_palette(rng, "6f7378 / b08d57 / e8e4da / 4b4744 / f4f2ee")[0]
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
    yarn = choose_palette(
        rng,
        "a8322d f1e6d2 27374d / 2d4a6b e9e2d0 b5493a / e8dcc4 8a6f52 c9b592 / "
        "4f6b4a d9c9a3 7f3f3a / d98f9c f3dfe0 7a5568 / 6a6f78 c7cbd0 33373d / "
        "c98a2b f4ead2 5a4632",
    )
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
    return lit * shade(height, light_angle(rng), 0.22)


def tartan(rng: Random) -> Colours:
    """Checked cloth in twill, with soft folds."""
    turn = rng.uniform(-0.7, 0.7)
    u, v = plane(rng, 40, 190, turn)
    fold = noise(rng, 2.6, size=250, stretch=2, turn=rng.uniform(0, pi))
    amount = rng.uniform(0.5, 4)
    u, v = u + amount * fold, v + 0.5 * amount * noise(rng, 2.6, size=250)
    colours = choose_palette(
        rng,
        "8f1d21 123524 0f1c3f e6c34a / 1c2f57 2d5a45 101820 d8d8d0 / "
        "b9a98a 2a2622 9c2b2b e8e0cf / 3b4a3a 6f7f5b 2a2f45 c98f3a / "
        "d7d3c8 7a7f86 2f3338 a03d3d / 5d2a4d 2f5a63 1b1b2b d9b8c4",
    )
    widths, names = rng.integers(2, 15, 7), rng.permutation(np.array([0, 0, 1, 1, 2, 2, 3]))
    half = np.repeat(names, np.where(names == 3, 2, widths))
    sett = np.concatenate([half, half[::-1]])
    i, j = np.floor(u).astype(int), np.floor(v).astype(int)
    over = (i + j) % 4 < 2
    colour = np.where(over[..., None], colours[sett[i % len(sett)]], colours[sett[j % len(sett)]])
    thread = np.where(over, np.sin(pi * (u - i)), np.sin(pi * (v - j)))
    wool = noise(rng, 0.5, size=12)
    light = shade(rng.uniform(6, 25) * fold, light_angle(rng), 0.35)
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
    colours = choose_palette(
        rng,
        "4d4a47 7a756d a39b8d cfc7b8 / 5c6570 8a929a b6bbbf dedfdd / "
        "6b4f3d 9a7a5d c4a582 e3d0b5 / 3c4146 6d5f55 9a6b55 d6cdbf / "
        "c9c2b4 e4dfd4 8b8378 f2efe8",
    )
    mineral = 1 + 0.1 * noise(rng, 0.7, size=15) * random_value(rng, stone + 9)
    height = 9 * dome + 0.15 * noise(rng, 0.8)
    angle, wet = light_angle(rng), rng.uniform(0, 0.35)
    light = shade(height, angle, 0.45)
    colour = ramp(tone, colours) * mineral[..., None] * light
    colour = colour * (0.15 + 0.85 * smooth(gap, 0.0, 0.22)[..., None])
    return colour + wet * smooth(light[..., 0], 1.35, 1.8)[..., None]
