"""The image of a dataset: its layout, made from the listing alone, and a reader of what was written. Pure."""
