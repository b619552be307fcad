"""Other few-shot methods, one file each, under the same protocol: nothing is ever chosen on test images."""
