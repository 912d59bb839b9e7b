"""The parts of finding and judging the disc in the form that this process uses: compiled where
`kernel.load` finds the kernel, else in NumPy and Pillow. Decided once, when this is imported."""

from inference_image import kernel

if kernel.load() is None:
    from inference_image.fundus_measures import measure, vesselness
    from inference_image.fundus_search import find_disc
    from inference_image.resampling import resize_into
else:
    from inference_image.fundus_compiled import find_disc, measure, resize_into, vesselness

__all__ = ["find_disc", "measure", "resize_into", "vesselness"]
