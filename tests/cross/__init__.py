"""`make test-oldlibc` and `make test-aarch64`: the library on other C libraries and another processor. Opt-in."""
