# SPDX-License-Identifier: Apache-2.0
"""`make test-oldlibc`, `make test-aarch64`, `make test-preloads`: the library on other C libraries, on another
processor and beside other preloads. Opt-in."""
