"""The rules of the meta server (section 8 of the design), and the changes that take them away.

Read `mutant_list.py` first: these are mutants like those, tried in the meta server's own world.
"""

from functools import partial

from tests.simulation.mutant_list import rule_of

_CLIENTS = "meta_server/clients.py"
_COMMITTING = "meta_server/committing.py"
_CONTROLS = "meta_server/controls_telling.py"
_GROUPS = "meta_server/groups.py"
_HANDLERS = "meta_server/handlers.py"
_LIVENESS = "meta_server/liveness.py"
_PUSHING = "meta_server/pushing.py"
_ROLES = "meta_server/roles.py"
_ROUTING = "meta_server/routing.py"
_SERVER = "meta_server/server.py"
_TIMESTAMPS = "meta_server/timestamps.py"


_ANSWER = """
            self._registry.apply(changes)
            self._on_changed(changes)
            await self._end_all((planned.intent for planned in batch), None)
            await self._executor.run(STORE_LANE, self._store.commit, changes)"""


_UNSTORED = """
            early = [one for one in changes if type(one).__name__ == "SaveControls"]
            self._registry.apply(early)
            self._on_changed(early)
            await self._executor.run(STORE_LANE, self._store.commit, changes)
            changes = tuple(one for one in changes if one not in early)"""


_rule = partial(rule_of, "meta")


_STORED = (
    _rule(
        "answer before the store",
        "writer",
        "Nobody is told of a change, and no answer depends on it, before the store has it.",
        "any registration",
        (
            _COMMITTING,
            "            await self._executor.run(STORE_LANE, self._store.commit, changes)",
            _ANSWER,
        ),
        (
            _COMMITTING,
            "        self._registry.apply(changes)\n        self._storing -= len(batch)\n",
            "        self._storing -= len(batch)\n",
        ),
        (
            _COMMITTING,
            """
        self._on_changed(changes)
        await self._end_all((planned.intent for planned in batch), None)

""",
            "\n\n",
        ),
    ),
    _rule(
        "go on after a failed commit",
        "writer",
        "After a commit that failed everything is loaded anew before anything else is planned.",
        "a store that fails",
        (_COMMITTING, "        self.is_stale = True\n", "        self.is_stale = False\n"),
    ),
    _rule(
        "what waits is forgotten",
        "writer",
        "When the store fails, whoever waits for it is told.",
        "requests in front of a store that fails",
        (
            _COMMITTING,
            "self._end_all((*(planned.intent for planned in batch), *waiting), error)",
            "self._end_all((planned.intent for planned in batch), error)",
        ),
        seeds=60,
    ),
    _rule(
        "timestamps of the wall clock",
        "timestamps",
        "The timestamps of answers never decrease, whatever the clock does.",
        "a clock that is set back",
        (
            _TIMESTAMPS,
            "        self._last = max(self._last, min(now_ms, self._ceiling))",
            "        self._last = min(now_ms, self._ceiling)",
        ),
    ),
    _rule(
        "timestamps begin anew",
        "timestamps",
        "After a restart timestamps begin at the bound that was stored.",
        "a clock that is set back, and a restart",
        (
            _SERVER,
            "            ceiling_ms=self.registry.timestamp_ms,",
            "            ceiling_ms=0,",
        ),
    ),
)

_ALIVE = (
    _rule(
        "nobody is waited for after a start",
        "liveness",
        "After a start everybody known is waited for, so that one who died meanwhile is noticed.",
        "a broker that dies while the meta server is away",
        (
            _SERVER,
            "(name for name in watched(self.registry) if name not in self._silent), now\n",
            "(), now\n",
        ),
        seeds=60,
    ),
    _rule(
        "silent at the start",
        "liveness",
        "A restart of the meta server takes nobody from routes.",
        "a restart",
        (
            _LIVENESS,
            "                self.expect(name, now)",
            "                self.expect(name, now - self._timeout_s + 5)",
        ),
    ),
    _rule(
        "a stall counts as silence",
        "liveness",
        "Time in which the process itself did not run is nobody's silence.",
        "a stall",
        (_SERVER, "            if missed > stall_s:", "            if missed > stall_s + 1e9:"),
        seeds=60,
    ),
    _rule(
        "the silent stay",
        "liveness",
        "A group whose master is silent for the time-out is taken from routes.",
        "a broker that vanishes",
        (
            _GROUPS,
            "    if known is None or not known.is_watched:",
            "    if known is None or known.is_watched:",
        ),
    ),
    _rule(
        "silence is told once",
        "liveness",
        "What the store could not be told of silence it is told later.",
        "a store that refuses just then",
        (
            _SERVER,
            "self.handlers.group_is_silent(name, partial(self._silent.__setitem__, name, None))",
            "self.handlers.group_is_silent(name, lambda: None)",
        ),
        seeds=60,
    ),
)

_ROUTED = (
    _rule(
        "delay groups as they come",
        "routing",
        "The delay groups of a subject are ranked by nothing that changes.",
        "a group that changes",
        (
            _ROUTING,
            'xxh3_64_intdigest(f"{group.name}\\0{subject}".encode())',
            'xxh3_64_intdigest(f"{group.name}\\0{subject}{group.updated_ms}".encode())',
        ),
        seeds=60,
    ),
    _rule(
        "an empty list for a delay producer",
        "routing",
        "A delay producer never gets an empty list while a delay group is known.",
        "delay groups that are all away",
        (
            _ROUTING,
            "return taking or open_to_it or known, bool(taking)",
            "return taking, bool(taking)",
        ),
        seeds=40,
    ),
    _rule(
        "routes grow while they work",
        "routing",
        "A route gets another group only when all it has stay away.",
        "a broker that is away for a while",
        (
            _ROUTING,
            "or all(\n        _stays_away",
            "or any(\n        _stays_away",
        ),
        seeds=60,
    ),
    _rule(
        "what is away is told",
        "routing",
        "Groups that went off-line, or are silent, are told to nobody.",
        "a broker that stops",
        (
            _ROUTING,
            """
        and group.state is not BrokerState.NRW
        and not group.is_retired
        and not (is_producer""",
            """
        and not group.is_retired
        and not (is_producer""",
        ),
    ),
    _rule(
        "read-only for nobody",
        "routing",
        "A group that is read-only for a subject is not told to its producers.",
        "an operator",
        (
            _ROUTING,
            "    return group.is_read_only or registry.is_read_only(subject, group.name)",
            "    return group.is_read_only and registry.is_read_only(subject, group.name)",
        ),
        seeds=40,
    ),
    _rule(
        "off-line for nobody",
        "routing",
        "A consumer that an operator took off-line is told so.",
        "an operator",
        (
            _HANDLERS,
            "OnlineState.OFFLINE if offline else OnlineState.ONLINE",
            "OnlineState.OFFLINE if offline and not client_id else OnlineState.ONLINE",
        ),
        seeds=40,
    ),
    _rule(
        "no pushes",
        "pushes",
        "Connected clients are told of a change at once.",
        "a change in the calm",
        (
            _SERVER,
            "        if len(subjects) < len(routing):\n            self.pushing.changed()\n",
            "        if len(subjects) < len(routing):\n            pass\n",
        ),
    ),
    _rule(
        "pushes without news",
        "pushes",
        "A client is pushed only what it was not told yet.",
        "any change",
        (
            _PUSHING,
            "        if signature == subscription.told:\n            return\n",
            "        if signature is subscription:\n            return\n",
        ),
    ),
)

_NODES = (
    _rule(
        "an older incarnation",
        "roles",
        "An incarnation older than one that registered is refused.",
        "a process that was thought dead",
        (
            _ROLES,
            "    if request.incarnation < known.incarnation:",
            "    if request.incarnation < 0:",
        ),
        seeds=40,
    ),
    _rule(
        "a later copy of who lives",
        "roles",
        "A later incarnation elsewhere is refused while the one before is heard.",
        "a copy of a directory",
        (
            _ROLES,
            '        if is_heard:\n            raise RefusedError(f"{name} lives; w',
            '        if is_heard and not name:\n            raise RefusedError(f"{name} lives; w',
        ),
        seeds=40,
    ),
    _rule(
        "a copy by another name",
        "roles",
        "A disk that is known by another node id is refused.",
        "a copy of a directory",
        (
            _ROLES,
            "other.storage_uuid == request.storage_uuid and key != own",
            "other.storage_uuid == request.storage_uuid and key == ()",
        ),
        seeds=40,
    ),
    _rule(
        "a wiped master",
        "roles",
        "A node in sync that comes with another disk is refused.",
        "a wiped disk",
        (
            _ROLES,
            "    if group is not None and known.node_id in group.record.in_sync:",
            "    if group is not None and known.node_id == group.cluster:",
        ),
        seeds=60,
    ),
    _rule(
        "two starts with one number",
        "roles",
        "Of two starts with the same incarnation the second is refused.",
        "a copy of a directory",
        (
            _ROLES,
            "    if request.incarnation == known.incarnation:",
            "    if request.incarnation == known.incarnation < 0:",
        ),
        seeds=40,
    ),
    _rule(
        "an older copy",
        "roles",
        "A disk in sync whose log lacks what it was known to have is refused.",
        "a copy of a directory",
        (
            _ROLES,
            "    if missing <= 0 and request.last_epoch >= known.last_epoch:",
            "    if missing <= 0 or request.last_epoch <= known.last_epoch:",
        ),
        seeds=40,
    ),
    _rule(
        "the end of a log is not noted",
        "roles",
        "That a log is in a new epoch is stored before the node is answered.",
        "a node that restarts",
        (
            _ROLES,
            "    if before is not None and before.last_epoch >= request.last_epoch:",
            "    if before is not None:",
        ),
        seeds=40,
    ),
    _rule(
        "one epoch for two lives",
        "roles",
        "A master that was started again has a new epoch.",
        "a node that restarts",
        (
            _ROLES,
            (
                "            epoch=max(record.epoch, request.last_epoch) + 1,\n"
                "            version=record.version + 1,\n"
                "            master=master,\n"
            ),
            (
                "            epoch=max(record.epoch, request.last_epoch),\n"
                "            version=record.version + 1,\n"
                "            master=master,\n"
            ),
        ),
    ),
    _rule(
        "a group begins at epoch 1",
        "roles",
        "A group begins above whatever epoch its first node's log has.",
        "a node whose log is older than the meta server",
        (_ROLES, "            epoch=request.last_epoch + 1,", "            epoch=1,"),
    ),
    _rule(
        "roles are given anew",
        "roles",
        "A node that was started again keeps its role.",
        "a node that restarts",
        (
            _ROLES,
            "    if known is not None:\n        return known.role",
            "    if known and known.role is NodeRole.MASTER:\n        return known.role",
        ),
    ),
    _rule(
        "the log of another group",
        "roles",
        "A log that another group has is refused.",
        "a wrong configuration",
        (
            _ROLES,
            "        if other.log_uuid == request.log_uuid and other.name != request.group:",
            "        if other.log_uuid == request.log_uuid and not other.name:",
        ),
    ),
)

_BOUNDED = (
    _rule(
        "whoever goes on-line",
        "brokers",
        "A group that is heard keeps its address, whoever else goes on-line for it.",
        "a broker that comes back elsewhere soon",
        (
            _GROUPS,
            "    if is_move and is_heard and not is_open:",
            "    if is_move and is_heard and not is_open and event is not GroupEvent.ONLINE:",
        ),
        seeds=40,
    ),
    _rule(
        "any address",
        "brokers",
        "The address of a group that was entered is the one that was entered.",
        "a broker that means ill",
        (
            _GROUPS,
            "    if entered is not None and request.address not in addresses_of(entered):",
            "    if entered is not None and request.address in addresses_of(entered)[:0]:",
        ),
        seeds=40,
    ),
    _rule(
        "any kind",
        "brokers",
        "A master of another kind than its group is refused.",
        "a broker with a wrong role",
        (
            _GROUPS,
            "    if known.kind is not kind:",
            "    if known.kind is kind and known.kind is None:",
        ),
        seeds=40,
    ),
    _rule(
        "any name",
        "brokers",
        "Names with blanks, slashes or too many bytes are refused.",
        "a broker that means ill",
        (_GROUPS, "    if not name or len(name.encode()) > NAME_BYTES_MAX:", "    if not name:"),
    ),
    _rule(
        "huge subjects",
        "bounds",
        "A subject beyond its limit is refused.",
        "a client that means ill",
        (_ROUTING, "    if too_long := subject_size_fault(sent):", "    if too_long := None:"),
    ),
    _rule(
        "huge names of clients",
        "bounds",
        "Names of a client beyond their limit are refused.",
        "a client that means ill",
        (
            _HANDLERS,
            "            if len(text.encode()) > limits.client_text_bytes_max:",
            "            if len(text.encode()) > 1 << 20:",
        ),
    ),
    _rule(
        "subjects without number",
        "bounds",
        "There are no more subjects than the settings allow.",
        "a flood of new subjects",
        (
            _HANDLERS,
            ">= subjects_max:\n",
            ">= subjects_max * 1000:\n",
        ),
        seeds=60,
    ),
    _rule(
        "groups without number",
        "bounds",
        "There are no more broker groups than the settings allow.",
        "a flood of new groups",
        (
            _GROUPS,
            "        if len(registry.groups) >= groups_max:",
            "        if len(registry.groups) >= groups_max * 1000:",
        ),
        seeds=60,
    ),
    _rule(
        "subscriptions without number",
        "bounds",
        "There are no more subscriptions than the settings allow.",
        "many clients",
        (
            _PUSHING,
            "                or self.subscriptions >= self._subscriptions_max",
            "                or self.subscriptions >= self._subscriptions_max * 1000",
        ),
        seeds=40,
    ),
    _rule(
        "subscriptions of the gone",
        "bounds",
        "What was kept of a connection goes with it.",
        "any connection that ends",
        (
            _PUSHING,
            "        self.subscriptions -= len(self._of.pop(connection, ()))",
            "        self.subscriptions -= len(self._of.get(connection, ())) * 0",
        ),
    ),
    _rule(
        "clients without number",
        "bounds",
        "No more clients are remembered than the settings allow.",
        "many clients",
        (
            _CLIENTS,
            "len(self._registry.clients) + len(self._seen) >= self._limits.clients_max:",
            "len(self._registry.clients) + len(self._seen) >= 1 << 40:",
        ),
        seeds=40,
    ),
    _rule(
        "a queue without end",
        "bounds",
        "No more requests wait for the store than the settings allow.",
        "a flood, and a slow store",
        (
            _COMMITTING,
            "        if len(self._waiting) >= self._waiting_max:",
            "        if len(self._waiting) >= self._waiting_max * 1000:",
        ),
        seeds=60,
    ),
)

_CONTROLLED = (
    _rule(
        "controls before the store",
        "controls",
        "No node is told of controls before the store has them.",
        "a change of controls, and a store that fails",
        (
            _COMMITTING,
            "            await self._executor.run(STORE_LANE, self._store.commit, changes)",
            _UNSTORED,
        ),
    ),
    _rule(
        "controls without an entry in the audit",
        "controls",
        "Every change of controls is stored with its entry in the audit.",
        "a change of controls",
        (
            "meta_server/admin_plans.py",
            (
                "    return desk.audited(\n"
                '        f"controls.{action}", target, [SaveControls(row)], before=before, '
                "after=after\n"
                "    )\n"
            ),
            "    return (SaveControls(row),)\n",
        ),
    ),
    _rule(
        "a change wakes nobody",
        "controls",
        "Nodes are told of a change of controls within a second.",
        "a change of controls in the calm",
        (
            _SERVER,
            (
                "        if any(isinstance(change, SaveControls) for change in changes):\n"
                "            self.telling.changed()\n"
            ),
            "",
        ),
    ),
    _rule(
        "controls of a neighbour are not told",
        "controls",
        "What another meta server has changed is told once it is loaded.",
        "controls that somebody else has changed in the store",
        (_SERVER, "        self.telling.loaded_anew()\n", ""),
    ),
    _rule(
        "the document of before",
        "controls",
        "A node is told the controls that there are, not those that others were told before.",
        "two changes of controls",
        (
            _CONTROLS,
            "        if known is None or known[0] is not row:",
            "        if known is None:",
        ),
    ),
    _rule(
        "weights are not told",
        "controls",
        "Weights are told with the rest.",
        "a weight",
        (
            "delay_protocol/node_controls.py",
            "    document = encode_controls(msgspec.structs.replace(controls, store=store))",
            (
                "    document = encode_controls(\n"
                "        msgspec.structs.replace(\n"
                "            controls,\n"
                "            store=store,\n"
                "            groups={\n"
                "                name: msgspec.structs.replace(rule, weight=None)\n"
                "                for name, rule in controls.groups.items()\n"
                "            },\n"
                "        )\n"
                "    )"
            ),
        ),
    ),
    _rule(
        "a question without an answer",
        "controls",
        "Whoever waits for other controls hears after a while that there are none.",
        "20 s without a change",
        (
            _CONTROLS,
            "        until = trio.current_time() + HOLD_S",
            "        until = trio.current_time() + HOLD_S * 1e6",
        ),
    ),
    _rule(
        "what a node has is not noted",
        "controls",
        "An operator is told by which controls each node goes.",
        "a change of controls",
        (
            _CONTROLS,
            "            self.said[key] = NodeSaid(asked.has, asked.keeps)",
            "            self.said.setdefault(key, NodeSaid(asked.has, asked.keeps))",
        ),
    ),
    _rule(
        "controls for whoever asks",
        "controls",
        "Only who has registered as a node is told its cluster's controls.",
        "a peer that means ill",
        (
            _CONTROLS,
            "        clusters = {key[0] for key in nodes}\n",
            '        clusters = {key[0] for key in nodes} or {"c1"}\n',
        ),
        seeds=40,
    ),
    _rule(
        "questions of the gone",
        "bounds",
        "What a connection has asked for goes with it.",
        "a node that ends",
        (
            _CONTROLS,
            "        self._waiting.pop(connection, None)",
            "        self._waiting.get(connection, None)",
        ),
    ),
)

META_MUTANTS = (*_STORED, *_ALIVE, *_ROUTED, *_NODES, *_BOUNDED, *_CONTROLLED)
"""In the order of the design."""
