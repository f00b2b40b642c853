"""What compare.py measures, in which order, and what an earlier call has measured already. Pure."""

import dataclasses

# Whose speed the project promises (tests/gpu/README.md names the machine's limits: minutes).
GOALS = ("vgg19", "resnet50", "resnet152", "inception_v3", "googlenet")
# How long a cell is thought to take until one of its kind has been measured.
GUESS_S = {False: 45.0, True: 180.0}


@dataclasses.dataclass(frozen=True)
class Cell:
    """Variants that are measured in turns: ours, and PyTorch's without or with torch.compile."""
    network: str
    batch: int
    precision: str
    compiled: bool = False

    def __str__(self):
        return f"{self.network}:{self.batch}:{self.precision}" + (":compile" if self.compiled else "")


def in_order(networks, batches, precisions, with_compile):
    """All cells, those first whose figures are wanted most: the goals' networks at the first batch, then these with
    torch.compile, which takes minutes, then all others, likewise. Within each by batch, precision and network as given."""
    cells = [Cell(network, batch, precision, compiled)
             for compiled in ((False, True) if with_compile else (False,))
             for batch in batches for precision in precisions for network in networks]

    def stage(cell):
        is_wanted_most = cell.network in GOALS and cell.batch == batches[0]
        return (not is_wanted_most, cell.compiled)
    return sorted(cells, key=stage)


def cell_of(row):
    return Cell(row["network"], row["batch"], row["precision"], row["compiled"])


def take_over(earlier, ours, gpu):
    """(cells done, rows, failures) of an earlier call's document; a cell in which ours was not measured is not done, unless
    it was given up.
    ValueError when it is another GPU's."""
    theirs = earlier["calls"][-1]["machine"]["gpu"]
    if theirs.split(",")[0] != gpu.split(",")[0]:
        raise ValueError(f"was measured on {theirs or 'a CPU'}, this is {gpu or 'a CPU'}: measure all of it anew")
    done = {cell_of(row) for row in earlier["rows"] if row["variant"] == ours}
    done |= {cell_of(failure) for failure in earlier["failures"] if failure.get("given_up")}
    return (done, [row for row in earlier["rows"] if cell_of(row) in done],
            [failure for failure in earlier["failures"] if cell_of(failure) in done])


def given_up(cell, ours, budget_s):
    """A failure: it had a whole call's time, and was not done."""
    return {**dataclasses.asdict(cell), "variant": ours, "error": f"not done in a call of {budget_s:.0f} s", "given_up": True}


def fits(cell, slowest_s, left_s):
    """Whether the cell is likely to be done in what is left. `slowest_s`: of those measured, by `compiled`."""
    return slowest_s.get(cell.compiled, GUESS_S[cell.compiled]) <= left_s
