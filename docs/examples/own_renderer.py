"""Show a renderer of your own in the studio's viewport: any function of nerfview's form."""

import sys

import numpy as np

import splatstudio as ss


def render(camera_state, tab_state):
    """Return where each pixel looks, as colors, [H, W, 3] uint8."""
    width, height = tab_state.viewer_width, tab_state.viewer_height
    K = camera_state.get_K((width, height))
    x, y = np.meshgrid(np.arange(width) + 0.5, np.arange(height) + 0.5)
    rays = np.stack([(x - K[0, 2]) / K[0, 0], (y - K[1, 2]) / K[1, 1], np.ones_like(x)], axis=-1)
    rays = rays @ camera_state.c2w[:3, :3].T
    rays /= np.linalg.norm(rays, axis=-1, keepdims=True)
    return (127.5 * (rays + 1.0)).astype(np.uint8)


if __name__ == "__main__" and "--check" not in sys.argv:
    page = ss.show(render)
    input(f"Open {page.url} in a browser; Enter ends it.")
