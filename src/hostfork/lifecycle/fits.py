"""Whether what a plan copies fits the storage limit: told before anything is made."""

from __future__ import annotations

from collections.abc import Mapping

from hostfork.errors import Code, StorageError
from hostfork.policy.options import join_private
from hostfork.policy.plan import Plan
from hostfork.storage.choose import Choice
from hostfork.storage.contract import Offer, Source
from hostfork.storage.failures import size
from hostfork.storage.measure import tally
from hostfork.values import replace
from hostfork.vocabulary import Guarantee


def counted(choices: Mapping[str, Choice], sources: Mapping[str, Source]) -> dict[str, Choice]:
    """The choices with the size of each copy; those that a short look did not come to the end of are counted whole."""
    return {
        path: choice
        if choice.offer is None or choice.offer.bytes_estimate is not None
        else replace(choice, offer=_counted(choice.offer, sources[path]))
        for path, choice in choices.items()
    }


def _counted(offer: Offer, source: Source) -> Offer:
    try:
        files, needed = tally(source.path, source.omit)
    except OSError as error:
        raise StorageError(
            Code.STORAGE_SOURCE, f"{source.path} cannot be read", step="plan", path=source.path, errno=error.errno
        ) from error
    return replace(offer, bytes_estimate=needed, files_estimate=files)


def check_fits(plan: Plan, limit: int) -> None:
    """Raise StorageError (`storage.limit`) where the copies alone are larger."""
    copies = {path.written: path.offer.bytes_estimate for path in plan.paths if path.offer is not None}
    sizes = {written: needed for written, needed in copies.items() if needed}
    if sum(sizes.values()) <= limit:
        return
    largest = max(sizes, key=lambda written: sizes[written])
    what = f"a private copy of {largest} takes" if len(sizes) == 1 else "the private copies take"
    raise StorageError(
        Code.STORAGE_LIMIT,
        f"{what} {size(sum(sizes.values()))}, and the storage limit is {size(limit)}",
        step="plan",
        path=plan.pool,
        place="--storage-limit",
        details=tuple(f"{written}: {size(needed)}" for written, needed in sizes.items()) if len(sizes) > 1 else (),
        hint=f"a larger --storage-limit · --private {join_private(largest, Guarantee.LIVE)} copies nothing",
    )
