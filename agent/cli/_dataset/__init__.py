"""The subcommands of `gigaslice dataset`, one module each; see agent/cli/dataset.py."""
