"""What each command of `gigaslice` does, apart from the node agent itself."""
