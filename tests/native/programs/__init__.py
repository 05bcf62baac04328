"""Python programs that tests run under the library."""
