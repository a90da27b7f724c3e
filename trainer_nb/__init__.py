__version__ = "0.1.0"


def show_versions():
    "Print what a bug report needs: versions of packages, the platform, the devices, and what runs the code"
    from .base import show_versions
    show_versions()
