"""Training of the demo model on drawn fundus photographs, from drawing to package.

`drawing` needs NumPy and Pillow only. `networks`, `loop` and `quantise` need TensorFlow
(extra `training`) and are imported by the commands that train, never from here.
"""
