"""One run: policy, plan, storage, view, workload, collect, release.

    load -> Policy    host_facts -> HostFacts    choose -> Choice    make_plan -> Plan    create -> ForkFolder
    prepare -> Record    launch -> Launched    watch -> Exit    end_writers -> StopReport    collect -> Changeset
    release -> Leftovers

An error before the command exists leaves nothing. After that nothing of its changes is lost.
"""

from __future__ import annotations

import os

from hostfork.errors import UnfitError
from hostfork.lifecycle import events
from hostfork.lifecycle.context import Caller, check_descriptors
from hostfork.lifecycle.live import LiveFork, Times
from hostfork.lifecycle.observe import host_facts
from hostfork.lifecycle.prepare import Tell
from hostfork.lifecycle.record import Outcome
from hostfork.lifecycle.request import Request
from hostfork.lifecycle.store import Store, home_folder, state_folder
from hostfork.policy.command import resolve_command
from hostfork.policy.load import load
from hostfork.policy.plan import Plan, make_plan, sources
from hostfork.policy.rules import Rule
from hostfork.storage.choose import Choice, choose
from hostfork.storage.contract import Source
from hostfork.values import replace
from hostfork.vocabulary import Access, Mechanism, Prefer, Require
from hostfork.workload import launch
from hostfork.workload.watch import SignalSource

_NATIVE = frozenset({Require.FOLDER_RENAME, Require.HARD_LINKS, Require.NATIVE_WATCHERS})
"""What no overlay keeps, and a writable snapshot does."""


def run(request: Request, tell: Tell, caller: Caller, signals: SignalSource | None) -> Outcome:
    """Run one command in a fork of its own. Raises HostforkError; then nothing was started, or its changes are kept."""
    try:
        return _run(request, tell, caller, signals)
    except UnfitError:
        # Nothing was made, and it is remembered: the next plan says another mechanism, or that there is none.
        return run(request, tell, caller, signals)


def _run(request: Request, tell: Tell, caller: Caller, signals: SignalSource | None) -> Outcome:
    times = Times()
    helper = launch.take_helper()
    helper.late = lambda why: tell(events.Warned(why))
    try:
        cwd = caller.working_folder(request.cwd)
        plan = plan_run(request, cwd, helper)
        check_descriptors(request.descriptors)
        path = dict(plan.environment.variables).get("PATH", os.environ.get("PATH"))
        resolve_command(request.command[0], cwd, path, user_namespace=plan.user_namespace)
        tell(events.Planned(plan))
        times.end("plan")
        store = Store(state_folder())
        with LiveFork(plan, request, tell, times) as fork:
            fork.create(store)
            fork.prepare(cwd, helper)
            fork.launch(caller, signals)
            fork.watch(signals)
            outcome = fork.finish()
    finally:
        helper.abandon()
    if store.expiry_is_due():
        from hostfork.lifecycle.expirer import start

        start(store)
    return outcome


def plan_run(request: Request, cwd: str, helper: launch.Helper) -> Plan:
    """What `run` would do. Changes nothing but hostfork's own folders: mechanisms are tried in the pool."""
    base, options = None, request.rules
    if request.base is not None:
        from hostfork.lifecycle import baselines

        base, made = baselines.rules(request.base, request.at)
        options = replace(options, made=made)
        if request.pool is None:
            request = replace(request, pool=base.pool)  # its forks lie where it lies
    policy = load(request.policy, options, cwd, home_folder())
    if policy.quiesce:
        from hostfork.lifecycle.quiesce import check_quiesce

        check_quiesce(policy.quiesce)
    facts = host_facts(policy, request, helper, cwd)
    if base is not None:
        baselines.check_pool(base, facts.pool)
    wanted = [(rule, source) for rule, source in sources(policy, facts) if rule.access is Access.PRIVATE]
    # Many forks of one baseline run side by side: they share its memory where nothing else was asked for.
    of_base = Prefer.NATIVE if _NATIVE.intersection(policy.requires) else Prefer.MEMORY
    if request.rules.prefer is not None:
        of_base = policy.prefer
    choices = {
        source.path: _choose(
            rule, source, facts.pool, policy.prefer if rule.line is None else of_base, request.relocated
        )
        for rule, source in wanted
    }
    if policy.storage_limit is None:
        return make_plan(policy, facts, choices, relocated=request.relocated)
    from hostfork.lifecycle.fits import check_fits, counted

    choices = counted(choices, {source.path: source for _, source in wanted})
    plan = make_plan(policy, facts, choices, relocated=request.relocated)
    check_fits(plan, policy.storage_limit)
    return plan


def _choose(rule: Rule, source: Source, pool: str, prefer: Prefer, elsewhere: bool) -> Choice:
    """What serves a rule: the first that it names and that can be had, with what was refused before."""
    if rule.line is not None:
        from hostfork.lifecycle import baselines

        return baselines.choice(rule, source, pool, prefer, elsewhere)
    choice = choose(source, pool, rule.mechanism, rule.guarantee, prefer=prefer, elsewhere=elsewhere)
    for word in rule.lesser:
        if choice.offer is None:
            mechanism, guarantee = (word, None) if isinstance(word, Mechanism) else (None, word)
            lesser = choose(source, pool, mechanism, guarantee, prefer=prefer, elsewhere=elsewhere)
            choice = Choice(lesser.offer, tuple(dict.fromkeys(choice.refused + lesser.refused)))
    return choice
