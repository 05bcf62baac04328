# SPDX-License-Identifier: Apache-2.0
"""Placement by brute force, straight from the rules: enumerate everything, compute every key in full, take the least.

Written without the code under test: no bit masks, no tree walk, no shared helpers. It reads the values of the model
and answers with {index: slices} or the name of a reason. Only good for a handful of GPUs.
"""

from itertools import combinations, permutations, product
from typing import Any

from gigaslice.core.model import NodeState, Request

Answer = dict[int, int] | str


class Gpus:
    """One pool, by position in the node."""

    def __init__(self, state: NodeState, positions: list[int], rank: int, only: frozenset[str]) -> None:
        self.at, self.rank = positions, rank
        self.usable = [p for p in positions if not only or state.gpus[p].uuid in only]
        self.slices = state.gpus[positions[0]].slices
        self.level = state.topology.levels
        self.links = state.topology.nvlinks
        self.free, self.cores, self.whole = {}, {}, set()
        for p in positions:
            shares = [s for a in state.occupants for s in a.shares if s.gpu == state.gpus[p].uuid]
            healthy = state.gpus[p].healthy
            self.free[p] = self.slices - sum(s.slices for s in shares) if healthy else 0
            self.cores[p] = 100 - sum(s.cores for s in shares) if healthy else 0
            if not shares and healthy:
                self.whole.add(p)
        self.fragments = {p for p in positions if self.free[p] > 0 and p not in self.whole}
        self.most = max([self.links[i][j] for i in positions for j in positions], default=0)
        self.nodes = self.inner_nodes()

    def cost(self, i: int, j: int) -> int:
        return int(self.level[i][j]) + 100 * (self.most - self.links[i][j])

    def access(self, i: int) -> int:
        return sum(self.cost(i, j) for j in self.at if j != i)

    def island(self, i: int) -> frozenset[int]:
        seen, todo = {i}, [i]
        while todo:
            one = todo.pop()
            new = {j for j in self.at if j != one and self.links[one][j] > 0} - seen
            seen |= new
            todo += new
        counts = {self.links[a][b] for a, b in combinations(sorted(seen), 2)}
        return frozenset(seen) if len(counts) == 1 and counts != {0} else frozenset({i})

    def distance(self, i: int, j: int) -> tuple[int, int]:
        return (0 if self.island(i) == self.island(j) else 1, int(self.level[i][j]))

    def inner_nodes(self) -> list[frozenset[int]]:
        """Single linkage: at each distance the connected components; a component that is new is an inner node."""
        pairs = {(i, j): self.distance(i, j) for i, j in combinations(self.at, 2)}
        found: list[frozenset[int]] = []
        for limit in sorted(set(pairs.values())):
            left = set(self.at)
            while left:
                part = {left.pop()}
                while True:
                    more = {x for (i, j), d in pairs.items() if d <= limit and part & {i, j} for x in (i, j)}
                    if more <= part:
                        break
                    part |= more
                left -= part
                if len(part) > 1 and frozenset(part) not in found:
                    found.append(frozenset(part))
        return found

    def parent(self, i: int) -> frozenset[int]:
        return min((n for n in self.nodes if i in n), key=len, default=frozenset({i}))

    def partial(self, taken: Any) -> int:
        left = self.whole - set(taken)
        return sum(1 for n in self.nodes if n & left and n - left)

    def worst(self, gpus: Any) -> int:
        return max([self.cost(i, j) for i, j in combinations(sorted(gpus), 2)], default=0)

    def total(self, gpus: Any) -> int:
        return sum(self.cost(i, j) for i, j in combinations(sorted(gpus), 2))

    def fits(self, i: int, k: int, cores: int) -> bool:
        if i not in self.usable:
            return False
        if k == self.slices:
            return i in self.whole
        return self.free[i] >= k and self.cores[i] >= cores


def pools(state: NodeState, only: frozenset[str] = frozenset()) -> list[Gpus]:
    kinds = sorted({(gpu.slices, gpu.model) for gpu in state.gpus})
    return [
        Gpus(state, [p for p, gpu in enumerate(state.gpus) if (gpu.slices, gpu.model) == kind], rank, only)
        for rank, kind in enumerate(kinds)
    ]


def parts_of(request: Request, slices: int) -> list[int]:
    """Return the slices wanted of each GPU, the remainder last.

    A total that is divided unevenly is for `fewest_now` alone.
    """
    if request.total is not None and not request.whole_first:
        count = request.gpus or -(-request.total // slices)
        return [request.total // count + (number < request.total % count) for number in range(count)]
    if request.whole_first:
        whole, rest = divmod(request.total or 0, slices)
        return [slices] * whole + [rest] * (rest > 0)
    return [slices if request.slices is None else request.slices] * (
        1 if request.gpus is None else request.gpus
    )


def place(state: NodeState, request: Request, *, links_first: bool = False) -> Answer:
    """LINKS_FIRST: as under the policy max-sum, which differs where several GPUs give the same."""
    size = [request.gpus, request.slices, request.total]
    if any(number is not None and number <= 0 for number in size):
        return "invalid"
    all_pools = [pool for pool in pools(state, request.only) if pool.usable]
    if not all_pools:
        return "no-matching-gpu"
    fitting = [pool for pool in all_pools if max(parts_of(request, pool.slices)) <= pool.slices]
    if not fitting:
        return "exceeds-gpu"
    fitting = [pool for pool in fitting if len(parts_of(request, pool.slices)) <= len(pool.usable)]
    if not fitting:
        return "exceeds-node"
    for count in range(1, len(state.gpus) + 1):  # as few GPUs as have room now
        alike = [pool for pool in fitting if len(parts_of(request, pool.slices)) == count]
        answer = one_gpu(alike, request) if count == 1 else several(alike, request, links_first)
        if answer:
            return answer
    return "insufficient-now"


def fewest_now(state: NodeState, request: Request) -> int | None:
    """Return on how few GPUs of one pool there is room for a total, trying every order of them; None for none."""
    counts = []
    for pool in pools(state, request.only):
        parts = parts_of(request, pool.slices)
        for gpus in permutations(pool.usable, len(parts)):
            if all(pool.fits(i, k, request.cores) for i, k in zip(gpus, parts, strict=True)):
                counts.append(len(parts))
                break
    return min(counts, default=None)


def one_gpu(fitting: list[Gpus], request: Request) -> dict[int, int] | None:
    options = []
    for pool in fitting:
        (k,) = parts_of(request, pool.slices)
        for i in pool.at:
            if pool.fits(i, k, request.cores):
                options.append((one_gpu_key(pool, i, k, request.cores), i, k))
    return {min(options)[1]: min(options)[2]} if options else None


def one_gpu_key(pool: Gpus, i: int, k: int, cores: int) -> tuple[Any, ...]:
    if k < pool.slices and i in pool.fragments:
        return (0, (pool.free[i], pool.cores[i] if cores else 0, pool.rank, pool.access(i), i))
    if k < pool.slices:
        return (1, (pool.rank, 0, 0, pool.access(i), pool.partial([i]), i))
    others = pool.parent(i) - {i}
    if others and all(pool.free[o] == 0 for o in others):
        tier, crowd = 1, 0
    elif others - pool.whole:
        tier, crowd = 2, len(pool.parent(i) & pool.whole)
    else:
        tier, crowd = 3, 0
    return (1, (pool.rank, tier, crowd, pool.access(i), pool.partial([i]), i))


def several(fitting: list[Gpus], request: Request, links_first: bool) -> dict[int, int] | None:
    for pool in fitting:
        parts = parts_of(request, pool.slices)
        if len(set(parts)) == 1:
            found = equal_parts(pool, len(parts), parts[0], request.cores, links_first)
        else:
            found = with_remainder(pool, len(parts) - 1, parts[-1], request.cores)
        if found:
            return found
    return None


def equal_parts(pool: Gpus, n: int, k: int, cores: int, links_first: bool) -> dict[int, int] | None:
    def key(gpus: tuple[int, ...]) -> tuple[Any, ...]:
        opened = (len(pool.whole & set(gpus)),)
        worst_first = (*opened, pool.worst(gpus), pool.total(gpus))
        spared = (pool.total(gpus), *opened) if links_first else worst_first
        return (*spared, sum(pool.free[i] for i in gpus), pool.partial(gpus), gpus)

    able = [i for i in pool.at if pool.fits(i, k, cores)]
    best = min(combinations(able, n), key=key, default=None)
    return dict.fromkeys(best, k) if best else None


def with_remainder(pool: Gpus, n: int, tail: int, cores: int) -> dict[int, int] | None:
    def key(choice: tuple[tuple[int, ...], int]) -> tuple[Any, ...]:
        gpus, extra = choice
        together = {*gpus, extra}
        return (
            *(pool.worst(gpus), pool.total(gpus), extra in pool.whole),
            *(pool.worst(together), pool.total(together), pool.free[extra]),
            *(pool.partial(together), gpus, extra),
        )

    choices = [
        (gpus, extra)
        for gpus, extra in product(combinations(sorted(pool.whole & set(pool.usable)), n), pool.at)
        if extra not in gpus and pool.fits(extra, tail, cores)
    ]
    best = min(choices, key=key, default=None)
    return {**dict.fromkeys(best[0], pool.slices), best[1]: tail} if best else None


def best_effort(score: Any, available: list[int], must: list[int], size: int) -> tuple[int, ...] | None:
    """Write out every division of the available GPUs into sets of `size` and what is left over."""
    if not 0 < size <= len(available) or len(must) > size or not set(must) <= set(available):
        return None

    def set_score(gpus: tuple[int, ...]) -> int:
        return sum(score(i, j) for i, j in combinations(gpus, 2))

    def divisions(left: tuple[int, ...], spare: int) -> Any:
        if not left:
            yield []
            return
        for length in {size, spare} - {0}:
            for others in combinations(left[1:], length - 1):
                group = (left[0], *others)
                rest = tuple(gpu for gpu in left if gpu not in group)
                if len(group) == size or spare:
                    for more in divisions(rest, spare if len(group) == size else 0):
                        yield [group, *more]

    options = []
    for division in divisions(tuple(sorted(available)), len(available) % size):
        good = [group for group in division if len(group) == size and set(must) <= set(group)]
        total = sum(set_score(group) for group in division)
        options += [(-total, -set_score(group), group) for group in good]
    return min(options)[2] if options else None


def least_over(state: NodeState, request: Request) -> int:
    """Return how few slices a node of well GPUs must lack for a request of equal parts."""
    lacks = []
    for pool in pools(state):
        parts = parts_of(request, pool.slices)
        if len(parts) <= len(pool.at) and max(parts) <= pool.slices:
            used = {i: pool.slices - pool.free[i] for i in pool.at}
            lack = sorted(max(0, used[i] + parts[0] - pool.slices) for i in pool.at)
            lacks.append(sum(lack[: len(parts)]))
    return min(lacks)
