"""Resources that the functions of one process share, such as clients: made once, and closed after the last user."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Hashable, Iterator
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from typing import Any, Generic, Protocol, TypeVar, overload
from weakref import WeakKeyDictionary, WeakSet

from async_op import cancellation
from async_op.errors import SharedOutsideOpen, as_exception
from keygroups.arguments import check_callable
from keygroups.context_managers import asynccontextmanager, contextmanager
from keygroups.errors import ConfigError
from keygroups.representation import representation

_log = logging.getLogger(__package__)

_T = TypeVar("_T")

_holder: ContextVar[Leases] = ContextVar("keygroups_leases")
"""Who holds what is awaited: the function that is being opened, or the resource that is being made."""


class Shared(Generic[_T]):
    """A resource that is about to be used; `shared` returns it. Await it in `open`, or use it with `async with`."""

    def __init__(self, key: Hashable, factory: Callable[[], Any]) -> None:
        self._key = key
        self._factory = factory
        self._entered: list[_Lease] = []

    def __repr__(self) -> str:
        return representation(self, {"factory": self._factory})  # not the key, which may be an address with a password

    def __await__(self) -> Generator[Any, None, _T]:
        return self._hold().__await__()

    async def __aenter__(self) -> _T:
        lease = await _acquire(self._key, self._factory)
        self._entered.append(lease)
        resource: _T = lease.resource
        return resource

    async def __aexit__(self, *_: object) -> None:
        await self._entered.pop().release()

    async def _hold(self) -> _T:
        holder = _holder.get(None)
        if holder is None or not holder.is_collecting:
            raise SharedOutsideOpen(self._key)
        lease = await _acquire(self._key, self._factory, holder.within)
        holder.add(lease)
        resource: _T = lease.resource
        return resource


@overload
def shared(key: Hashable, factory: Callable[[], Awaitable[_T]]) -> Shared[_T]: ...
@overload
def shared(key: Hashable, factory: Callable[[], AbstractAsyncContextManager[_T]]) -> Shared[_T]: ...
@overload
def shared(key: Hashable, factory: Callable[[], _T]) -> Shared[_T]: ...
def shared(key: Hashable, factory: Callable[[], Any]) -> Shared[Any]:
    """Return a resource, such as a client, that all users in this process share on the same event loop.

    The first user's factory makes it; the others get the same object. After the last user it is closed, once. A
    function that asks while it is being closed waits, and then it is made again.

    Await the result in a function's `open`: the function then uses the resource until after its own `close`. Anywhere
    else, use `async with`.

    Parameters
    ----------
    key : hashable
        What the resource is for, such as `("http", url)`. It alone decides who shares: use one factory for a key.
    factory : callable
        Returns the resource, or an awaitable of it. If the resource has a method `aclose` or `close`, that closes it.
        If it has none but is an async context manager, it is entered and left in the same task, and users get what it
        returns on entering.

    Raises
    ------
    SharedOutsideOpen
        It was awaited outside of `open`.
    ConfigError
        The factory is not callable, or uses the resource that it makes.

    Examples
    --------
    >>> import asyncio
    >>> class Client:
    ...     async def aclose(self):
    ...         print("closed")
    >>> async def main():
    ...     async with shared("client", Client) as one, shared("client", Client) as other:
    ...         print(one is other)
    >>> asyncio.run(main())
    True
    closed
    """
    check_callable("factory", factory, 0, reason="it makes the resource", awaited=True)
    return Shared(key, factory)


class Holder(Protocol):
    """What uses resources for as long as it lives: a function, or another resource."""

    def give_up(self) -> None:
        """End, because one of them has broken."""
        ...


class Leases:
    """The resources that one function holds, or one resource. Only the thread of the event loop may call it.

    Parameters
    ----------
    holder : Holder
        Told if one of them breaks: it cannot work without it, and the next one makes it again.
    within : tuple of hashable
        The keys of the resources that are being made, each inside the one before it.

    Attributes
    ----------
    is_collecting : bool
        Whether resources that are awaited now are held until `release`.
    """

    __slots__ = ("_holder", "_leases", "is_collecting", "within")

    def __init__(self, holder: Holder, within: tuple[Hashable, ...] = ()) -> None:
        self._holder = holder
        self._leases: list[_Lease] = []
        self.within = within
        self.is_collecting = False

    def add(self, lease: _Lease) -> None:
        """Hold one more resource."""
        lease.holder = self._holder
        self._leases.append(lease)
        if lease.is_broken:  # since before its holder could be told
            self._holder.give_up()

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Hold what is awaited inside this context."""
        token, self.is_collecting = _holder.set(self), True
        try:
            yield
        finally:
            self.is_collecting = False
            _holder.reset(token)

    async def release(self) -> None:
        """Release everything, the newest first; after a cancellation, the next call continues where it stopped."""
        errors = []
        while self._leases:
            try:
                await self._leases[-1].release()
            except Exception as error:  # noqa: BLE001 - the others are released first
                errors.append(error)
            self._leases.pop()
        if errors:
            raise errors[0]


class _Lease:
    """One use of a resource."""

    __slots__ = ("__weakref__", "_is_released", "_keeper", "holder", "resource")

    def __init__(self, keeper: _Keeper, resource: Any) -> None:
        self._keeper = keeper
        self._is_released = False
        self.holder: Holder | None = None
        self.resource = resource

    @property
    def is_broken(self) -> bool:
        """Whether the resource ends although it has a user."""
        return self._keeper.is_ending

    async def release(self) -> None:
        """End the use. The last user waits until the resource is closed, and gets the error of that.

        If it has broken, all users do.
        """
        if not self._is_released:
            self._is_released = True
            self._keeper.leases.discard(self)
            self._keeper.leave()
        if self._keeper.is_ending:
            await self._keeper.end()


class _Keeper:
    """Makes one resource, keeps it while it has users, and closes it: all in one task, which belongs to no user.

    So a cancelled user does not disturb the others, and a context manager is left in the task that has entered it.
    """

    def __init__(self, key: Hashable, factory: Callable[[], Any], within: tuple[Hashable, ...]) -> None:
        loop = asyncio.get_running_loop()
        self._key = key
        self._factory = factory
        self._leases = Leases(self, (*within, key))
        self._users = 0
        self.leases: WeakSet[_Lease] = WeakSet()  # not what keeps an abandoned operator
        self._unused = loop.create_future()
        self._made: asyncio.Future[Any] = loop.create_future()
        self.is_ending = False
        self._limit: asyncio.TimerHandle | None = None
        # Not through the loop's task factory: an eager one would run the factory before the first user is counted.
        self._task = asyncio.Task(self._keep(_keepers_of(loop)), loop=loop, name=cancellation.KEEPER_TASK)

    async def join(self) -> _Lease:
        """Begin a use, once the resource has been made; raises the factory's error."""
        self._users += 1
        try:
            lease = _Lease(self, await asyncio.shield(self._made))
        except asyncio.CancelledError:
            self.leave()
            if self.is_ending:
                if not self._made.done():
                    self._task.cancel()
                await self.ended()
            raise
        self.leases.add(lease)
        return lease

    def give_up(self) -> None:
        """End, and tell all holders, because the resource has broken or one that it uses."""
        self.is_ending = True
        for lease in list(self.leases):
            if lease.holder is not None:
                lease.holder.give_up()
        if not self._unused.done():
            self._unused.set_result(None)

    def leave(self) -> None:
        """End a use."""
        self._users -= 1
        if not self._users:
            self.is_ending = True
            if not self._unused.done():
                self._unused.set_result(None)

    async def ended(self) -> None:
        """Wait until the resource has been closed."""
        await asyncio.wait([self._task])

    async def end(self) -> None:
        """Wait until the resource has been closed; raises the error of closing it."""
        await self.ended()
        if not self._task.cancelled():
            self._task.result()

    async def _keep(self, keepers: dict[Hashable, _Keeper]) -> None:
        try:
            async with self._resource() as resource:
                self._made.set_result(resource)
                try:
                    await self._until_unused()
                finally:
                    self._limit = asyncio.get_running_loop().call_later(cancellation.CLOSE_SECONDS, self._end_closing)
        except BaseException as error:
            if not self._made.done():
                self._fail(error)
            elif not isinstance(error, asyncio.CancelledError):
                raise as_exception(error) from error  # from closing it
            if isinstance(error, asyncio.CancelledError):
                raise
        finally:
            if self._limit is not None:
                self._limit.cancel()
            del keepers[self._key]

    async def _until_unused(self) -> None:
        try:
            await asyncio.wait({self._unused})
        except asyncio.CancelledError:
            if cancellation.tasks_if_all_are_cancelled() is None:
                self.give_up()  # a task group in the resource has cancelled this task
                raise
            # At the end of a program the users end, too, and may need the resource for that.
            await asyncio.wait({self._unused}, timeout=cancellation.CLOSE_SECONDS)

    def _end_closing(self) -> None:
        """End the closing of the resource: the last user and the next one must not wait for ever."""
        what, seconds = type(self._made.result()).__name__, cancellation.CLOSE_SECONDS
        _log.warning("the end of a shared %s was given up after %g s", what, seconds)
        self._task.cancel()

    def _fail(self, error: BaseException) -> None:
        """Tell all who wait that there is no resource."""
        self.is_ending = True
        self._made.set_exception(as_exception(error))
        self._made.exception()  # perhaps the caller has gone

    @asynccontextmanager
    async def _resource(self) -> AsyncIterator[Any]:
        try:
            with self._leases.collecting():
                made = self._factory()
                made = await made if inspect.isawaitable(made) else made
            close = getattr(made, "aclose", None) or getattr(made, "close", None)
            if close is None and isinstance(made, AbstractAsyncContextManager):
                async with made as entered:
                    yield entered
                return
            try:
                yield made
            finally:
                closing = close() if close is not None else None
                if inspect.isawaitable(closing):
                    await closing
        finally:
            await self._leases.release()


_all_keepers: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Hashable, _Keeper]] = WeakKeyDictionary()
_all_keepers_lock = threading.Lock()


def _keepers_of(loop: asyncio.AbstractEventLoop) -> dict[Hashable, _Keeper]:
    with _all_keepers_lock:
        return _all_keepers.setdefault(loop, {})


async def _acquire(key: Hashable, factory: Callable[[], Any], within: tuple[Hashable, ...] = ()) -> _Lease:
    """Return a use of the resource of a key, which is made if there is none."""
    if key in within:
        raise ConfigError("key", key, "its factory waits for itself: give what it uses another key")
    keepers = _keepers_of(asyncio.get_running_loop())
    while (keeper := keepers.get(key)) is not None and keeper.is_ending:
        await keeper.ended()
    if keeper is None:
        keeper = keepers[key] = _Keeper(key, factory, within)
    return await keeper.join()
