"""What all parts of Gigaslice share: a pure core (values, placement, allocation table, limits), and runtime helpers."""
