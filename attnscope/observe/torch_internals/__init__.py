"""The private parts of torch: of its dispatcher, its compiler, and its kernels for the meta device.

torch may change them in any release, so no other package uses any, `pyproject.toml` bounds torch from
above, and CI runs the newest release allowed.
"""
