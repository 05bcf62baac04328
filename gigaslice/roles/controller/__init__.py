"""The role `gigaslice controller`: objects made from the nodes' inventories, class status, hints, the web page."""
