"""
Practitioner: from a folder of photos to a model
================================================
stub
"""

print(1)
