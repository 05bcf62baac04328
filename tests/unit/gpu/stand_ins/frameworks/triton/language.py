"""Names that kernels use."""

constexpr = int
