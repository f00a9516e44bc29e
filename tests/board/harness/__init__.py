"""The virtual board: builds a disk image, boots a real kernel on it and brings back what happened there."""
