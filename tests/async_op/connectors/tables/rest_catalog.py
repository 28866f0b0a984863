"""A catalog of Iceberg tables that speaks the REST protocol, which managed catalogs have in common.

Written from the protocol's description. Requests and answers are checked by the models of pyiceberg's own client.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from typing import Any

from pyiceberg.catalog.rest import CreateTableRequest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table import CommitTableRequest
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import update_table_metadata
from werkzeug.exceptions import HTTPException, NotFound
from werkzeug.routing import Map, Rule
from werkzeug.wrappers import Request, Response

_ROUTES = Map(
    [
        Rule("/v1/config", endpoint="config", methods=["GET"]),
        Rule("/v1/oauth/tokens", endpoint="token", methods=["POST"]),
        Rule("/v1/namespaces", endpoint="create_namespace", methods=["POST"]),
        Rule("/v1/namespaces/<namespace>", endpoint="namespace", methods=["GET", "HEAD"]),
        Rule("/v1/namespaces/<namespace>/tables", endpoint="create_table", methods=["POST"]),
        Rule("/v1/namespaces/<namespace>/tables/<name>", endpoint="table", methods=["GET", "HEAD"]),
        Rule("/v1/namespaces/<namespace>/tables/<name>", endpoint="commit", methods=["POST"]),
        Rule("/v1/namespaces/<namespace>/tables/<name>", endpoint="drop", methods=["DELETE"]),
    ]
)


class RestCatalog:
    """The catalog, with faults that a test chooses.

    Attributes
    ----------
    warehouse : str
        Where tables are.
    asked : list of str
        The routes of all requests, in their order.
    fault : callable or None
        Called with the route, before and after a request is served; may return an answer in place of the right one.
    """

    url: str

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.begin("")

    def begin(self, warehouse: str) -> None:
        """Forget all tables, and answer rightly."""
        self.warehouse = warehouse
        self.asked: list[str] = []
        self.fault: Callable[[str, bool], Response | None] = lambda route, is_done: None
        self._namespaces: set[str] = set()
        self._tables: dict[tuple[str, str], TableMetadata] = {}

    @property
    def properties(self) -> dict[str, str]:
        """How clients find it."""
        return {"type": "rest", "uri": self.url, "name": "test"}

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        request = Request(environ)
        try:
            route, arguments = _ROUTES.bind_to_environ(environ).match()
            answer = self._answer(route, request, arguments)
        except HTTPException as error:
            answer = refusal(error.code or 500, error.name)
        return answer(environ, start_response)

    def _answer(self, route: str, request: Request, arguments: Any) -> Response:
        with self._lock:
            self.asked.append(route)
            if (wrong := self.fault(route, False)) is not None:
                return wrong
            right: Response = getattr(self, f"_{route}")(request, **arguments)
            return self.fault(route, True) or right

    def _config(self, request: Request) -> Response:
        return _json({"defaults": {}, "overrides": {}})

    def _token(self, request: Request) -> Response:
        return _json({"access_token": "token", "token_type": "bearer", "expires_in": 3600})

    def _create_namespace(self, request: Request) -> Response:
        (namespace,) = json.loads(request.data)["namespace"]
        if namespace in self._namespaces:
            return refusal(409, "AlreadyExistsException")
        self._namespaces.add(namespace)
        return _json({"namespace": [namespace], "properties": {}})

    def _namespace(self, request: Request, namespace: str) -> Response:
        if namespace not in self._namespaces:
            return refusal(404, "NoSuchNamespaceException")
        return _json({"namespace": [namespace], "properties": {}})

    def _create_table(self, request: Request, namespace: str) -> Response:
        optional = dict.fromkeys(("location", "partition-spec", "write-order"))
        wanted = CreateTableRequest.model_validate(optional | json.loads(request.data))
        if (namespace, wanted.name) in self._tables:
            return refusal(409, "AlreadyExistsException")
        self._tables[namespace, wanted.name] = new_table_metadata(
            wanted.table_schema,
            wanted.partition_spec or UNPARTITIONED_PARTITION_SPEC,
            wanted.write_order or UNSORTED_SORT_ORDER,
            wanted.location or f"{self.warehouse}/{namespace}/{wanted.name}",
            wanted.properties,
        )
        return self._table(request, namespace, wanted.name)

    def _table(self, request: Request, namespace: str, name: str) -> Response:
        if (metadata := self._tables.get((namespace, name))) is None:
            return refusal(404, "NoSuchTableException")
        return _described(metadata)

    def _commit(self, request: Request, namespace: str, name: str) -> Response:
        wanted = CommitTableRequest.model_validate_json(request.data)
        if (metadata := self._tables.get((namespace, name))) is None:
            return refusal(404, "NoSuchTableException")
        try:
            for requirement in wanted.requirements:
                requirement.validate(metadata)
        except CommitFailedException as error:
            return refusal(409, f"CommitFailedException: {error}")
        metadata = self._tables[namespace, name] = update_table_metadata(metadata, wanted.updates)
        return _described(metadata)

    def _drop(self, request: Request, namespace: str, name: str) -> Response:
        if self._tables.pop((namespace, name), None) is None:
            raise NotFound
        return Response(status=204)


def refusal(status: int, kind: str, message: str = "no") -> Response:
    """Return an error as the protocol describes it."""
    return _json({"error": {"message": message, "type": kind, "code": status}}, status)


def _json(content: Any, status: int = 200) -> Response:
    return Response(json.dumps(content), status, content_type="application/json")


def _described(metadata: TableMetadata) -> Response:
    plain = json.loads(metadata.model_dump_json())
    return _json({"metadata-location": f"{metadata.location}/metadata.json", "metadata": plain, "config": {}})
