"""The rules that hold delay server, meta server and broker groups together, and their removals.

Read `mutant_list.py` first: these are mutants like those, tried in the cluster's world.
"""

from functools import partial

from tests.simulation.mutant_list import rule_of

_CONTROLS = "delay_server/controls.py"
_FOLLOWING = "delay_server/following.py"
_HANDLERS = "meta_server/handlers.py"
_LANES = "delay_server/lanes.py"
_META_ROUTES = "delay_transport/meta_routes.py"
_PUSHING = "meta_server/pushing.py"
_REGISTRATION = "delay_server/registration.py"
_ROUTES = "delay_server/routes.py"
_SESSION = "delay_protocol/meta_session.py"


_rule = partial(rule_of, "cluster")


_FOLLOWED = (
    _rule(
        "waiting messages keep their route",
        "following routes",
        "Messages that wait go where the route leads that their subject has now.",
        "a route that changes",
        (_ROUTES, "            self.on_route_changed(number, route)\n", ""),
    ),
    _rule(
        "a group stays where it was",
        "following routes",
        "A group is where it was heard of last.",
        "a group that comes back elsewhere",
        (
            _ROUTES,
            "            if self._masters.get(group.name) == group.master:",
            "            if group.name in self._masters:",
        ),
        seeds=60,
    ),
    _rule(
        "who waits for a route is forgotten",
        "following routes",
        "A subject is asked for as long as its messages wait for a route.",
        "a subject without a route for some minutes",
        (
            _ROUTES,
            (
                "        needed = each_once(np.concatenate([used, self.lanes.parked(), "
                "self.lanes.holders()]))"
            ),
            "        needed = each_once(np.concatenate([used, self.lanes.holders()]))",
        ),
        seeds=60,
    ),
    _rule(
        "what waits on disk stays in its lane",
        "following routes",
        "What waits on disk for a route comes from there when there is one.",
        "a subject without a route for a while",
        (
            _LANES,
            (
                "        if subject in self.unopened.get(before, ()):\n"
                "            _take(self.unopened, before, subject)\n"
                "        self._await_opening(subject, lane)\n"
            ),
            "",
        ),
    ),
    _rule(
        "routes of a lost connection are trusted",
        "asking",
        "On a new connection everything is asked anew: what was told before may be over.",
        "a split, or a meta server that ends",
        (
            _SESSION,
            " or use.subject in self._unknown\n",
            " or True\n",
        ),
        seeds=40,
    ),
    _rule(
        "pushes are not heard",
        "asking",
        "A push changes a route as an answer does.",
        "a route that changes",
        (
            _META_ROUTES,
            "                if changed is not None:\n",
            "                if changed is not None and frame.opaque:\n",
        ),
        seeds=40,
    ),
    _rule(
        "nobody connects again",
        "asking",
        "A connection to a meta server that ends is made anew.",
        "a meta server that ends",
        (
            _META_ROUTES,
            "            await trio.sleep(wait_s)\n\n    async def _converse",
            "            await trio.sleep_forever()\n\n    async def _converse",
        ),
    ),
    _rule(
        "no meta server, no routes",
        "asking",
        "What is known of routes stays when no meta server answers.",
        "a meta server that is away",
        (
            _META_ROUTES,
            "            self._dialogue.disconnected(trio.current_time())\n",
            (
                "            self._dialogue.disconnected(trio.current_time())\n"
                "            for use in self._session._uses.values():\n"
                "                use.route = None\n"
                "                self._on_changed(use.subject)\n"
            ),
        ),
        seeds=60,
    ),
)

_REACHED = (
    _rule(
        "no address, no server",
        "following routes",
        "A group at what is no address is a group that cannot be reached, and no more.",
        "a group at no address",
        (
            "delay_transport/runtime.py",
            "    if fault:\n        raise NoAddressError(",
            "    if not where:\n        raise NoAddressError(",
        ),
        (
            "delay_transport/runtime.py",
            "    except (ValueError, OverflowError) as error:\n",
            "    except ZeroDivisionError as error:\n",
        ),
    ),
    _rule(
        "an impossible address is an error",
        "following routes",
        "What a meta server says of one group ends nothing, whatever it is.",
        "a group at no address",
        (
            _ROUTES,
            "    try:\n        return parse_address(master)\n    except AddressError:\n",
            "    try:\n        return parse_address(master)\n    except ZeroDivisionError:\n",
        ),
    ),
)

_STANDS = (
    _rule(
        "a later epoch is ignored",
        "membership",
        "A node that is told of another epoch than the one it began ends.",
        "a copy of a directory",
        (
            _REGISTRATION,
            "            raise FencedError(node=name, epoch=self.own_epoch, reason=reason)",
            "            _log.warning(reason)",
        ),
        seeds=60,
    ),
    _rule(
        "a refusal is ignored",
        "membership",
        "A node that is refused ends.",
        "a copy of a directory",
        (
            _REGISTRATION,
            "            raise NodeRefusedError(node=name, meta=peer, reason=reply.reason)",
            "            raise _NoUseError(reply.reason)",
        ),
        seeds=60,
    ),
    _rule(
        "clients are told once",
        "membership",
        "Clients are told again and again that the group takes messages.",
        "nothing",
        (
            _REGISTRATION,
            (
                "                with trio.move_on_after(pause_s):\n"
                "                    await self._announce_now.sleep()"
            ),
            "                await self._announce_now.sleep()",
        ),
    ),
    _rule(
        "a new connection is not told",
        "membership",
        "Clients are told on each connection to a meta server.",
        "a split, or a meta server that ends",
        (
            _REGISTRATION,
            "                nursery.start_soon(self._announce, connection)",
            (
                "                if self.failures == 0:\n"
                "                    nursery.start_soon(self._announce, connection)"
            ),
        ),
    ),
    _rule(
        "nobody registers again",
        "membership",
        "A node that has lost its meta server looks for one again.",
        "a split, or a meta server that ends",
        (
            _REGISTRATION,
            "            await trio.sleep(self._backoff.wait_s(failures, self._chance))",
            "            await trio.sleep(1e9)",
        ),
    ),
)

_TOLD = (
    _rule(
        "pushes of single routes only",
        "telling",
        "When a group changes, or a setting, all are looked at whom it may concern.",
        "a group that goes",
        (
            "meta_server/server.py",
            "        if len(subjects) < len(routing):\n            self.pushing.changed()\n",
            "        if len(subjects) < len(routing):\n            self.pushing.changed([])\n",
        ),
        seeds=40,
    ),
    _rule(
        "a subscription by the wrong name",
        "telling",
        "A client of a retry subject is told of the routes of the real one.",
        "a route that changes",
        (
            _HANDLERS,
            "            routed=routed,\n            client_id=request.client_id,",
            "            routed=request.subject,\n            client_id=request.client_id,",
        ),
        seeds=40,
    ),
)

_CONTROLLED = (
    _rule(
        "older controls are believed",
        "controls",
        "A node keeps its controls when it is told an older version of the same store.",
        "a store that is set back",
        (
            _FOLLOWING,
            "    if present.store == told.store and told.version > present.version:",
            "    if present.store == told.store:",
        ),
        seeds=40,
    ),
    _rule(
        "another store opens",
        "controls",
        "What is held back is not let go by the rules of another store.",
        "a store that is lost, and others that have its rows of before",
        (_FOLLOWING, "    if not opened:\n", "    if opened or not opened:\n"),
        seeds=60,
    ),
    _rule(
        "told controls are not kept",
        "controls",
        "What a node is told of controls is on its disk before it counts.",
        "an end of the server",
        (
            _CONTROLS,
            "            self.audit.append(entry)\n            self._write(told)\n",
            "            self.audit.append(entry)\n            self.controls = told\n",
        ),
    ),
    _rule(
        "controls are asked for once",
        "controls",
        "One question for other controls always waits at the meta server.",
        "a change of controls in the calm",
        (
            _REGISTRATION,
            "                is_first = False\n            except TransportError as error:",
            "                return\n            except TransportError as error:",
        ),
    ),
    _rule(
        "controls of the first connection",
        "controls",
        "On each connection to a meta server a node asks for controls.",
        "a meta server that ends",
        (
            _REGISTRATION,
            "                nursery.start_soon(self._follow, talk)",
            (
                "                if self.failures == 0:\n"
                "                    nursery.start_soon(self._follow, talk)"
            ),
        ),
    ),
    _rule(
        "told controls wait for a start",
        "controls",
        "What a node is told of controls holds at once.",
        "a change of controls in the calm",
        (
            "delay_server/server.py",
            "            if self.is_wired:\n                await self.operator.take(",
            "            if not told.version:\n                await self.operator.take(",
        ),
    ),
    _rule(
        "told weights are not heeded",
        "controls",
        "Groups have the weights that the meta server tells.",
        "a weight",
        (
            "delay_server/operator.py",
            (
                "            {name: rule.weight for name, rule in controls.groups.items() "
                "if rule.weight is not None}"
            ),
            "            {}",
        ),
    ),
)

CLUSTER_MUTANTS = (*_FOLLOWED, *_REACHED, *_STANDS, *_TOLD, *_CONTROLLED)
"""From what the delay server does with what it hears to what it is told."""
