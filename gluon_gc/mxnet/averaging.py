"""The base of the ways in which a trainer's workers average."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import (
    Any,
    Callable,
    ClassVar,
    Collection,
    Dict,
    List,
    Mapping,
    Optional,
    Sequence,
    Set,
    Tuple,
    Union,
)

import numpy as np
from mxnet.gluon import Parameter
from mxnet.ndarray import NDArray
from mxnet.optimizer import Optimizer

from ..agreement import Facts
from ..checkpoint import Place
from ..checkpoint.cutting import Arrays
from ..learning_rates import LearningRates
from ..plan import Tensor
from . import trainer_facts
from .amp import AgreedLossScaler
from .compressions import Compressions
from .exchange import Exchange

Update = Callable[[float, bool], None]
"""Applies the optimizer, given the factor of the gradients and whether some may be stale."""


class Averaging(ABC):
    """What the workers of a trainer average, and through which exchange.

    All workers call each method together.

    Parameters
    ----------
    name : str
        The first part of the tensors' names in the exchange.
    exchange : Exchange
    params : sequence of Parameter
        The trainer's.
    last_first : sequence of int
        The numbers of the parameters in the order in which backward makes their gradients.
    compressions : Compressions
        How the gradient or the vectors of each parameter are compressed.
    on_nonfinite : str
        As `DistributedTrainer` has it.

    Attributes
    ----------
    steps : int
        How many steps were made.
    tensors : dict
        The tensors that the exchange knows, by the number of the parameter and the kind of vector,
        which is "" for a gradient.
    learning_rates : LearningRates
        By the number of the parameter. They are the optimizer's own, without lr_mult.
    described : dict or None
        The algorithm's name and options; None: gradients are averaged in every step.
    mu : float or None
        The momentum that is applied outside the optimizer.
    when_prepared : callable
        Is called once the exchange knows more tensors.
    """

    noun: ClassVar[str]
    described: Optional[Dict[str, Any]] = None
    mu: Optional[float] = None

    def __init__(
        self,
        name: str,
        exchange: Exchange,
        params: Sequence[Parameter],
        last_first: Sequence[int],
        compressions: Compressions,
        on_nonfinite: str,
    ) -> None:
        self._name, self.exchange = name, exchange
        self._params, self._last_first = params, last_first
        self._compressions, self._on_nonfinite = compressions, on_nonfinite
        self.steps = 0
        self.tensors: Dict[Tuple[int, str], Tensor] = {}
        self.learning_rates = LearningRates()
        self.when_prepared: Callable[[], None] = lambda: None
        self._epoch: Optional[int] = None

    # For each way

    @abstractmethod
    def follow(self, exchange: Exchange, goes_on: bool) -> bool:
        """Use another exchange from now on.

        Parameters
        ----------
        exchange : Exchange
        goes_on : bool
            Whether all workers have the ranks and the number that they had.

        Returns
        -------
        Whether the workers' parameters must be made equal again.
        """

    @abstractmethod
    def prepare(self, optimizer: Optimizer, call: str, about: Facts = ()) -> List[int]:
        """Make sure that the exchange knows all that is averaged.

        Parameters
        ----------
        optimizer : Optimizer
        call : str
            The function of the user that does this.
        about : Facts, optional
            What the workers compare besides the call, the optimizer and the parameters.

        Returns
        -------
        The numbers of the parameters that have gradients, in the order of backward.
        """

    @abstractmethod
    def step(
        self,
        optimizer: Optimizer,
        scale: float,
        ignore_stale_grad: bool,
        scaler: Optional[AgreedLossScaler],
        update: Update,
    ) -> None:
        """Make a step, with gradients times `scale`.

        Parameters
        ----------
        optimizer : Optimizer
            Makes the update.
        scale : float
        ignore_stale_grad : bool
            As in `DistributedTrainer.step`.
        scaler : AgreedLossScaler, optional
            If it finds an overflow, the step is left out.
        update : Update
            Applies the optimizer.
        """

    def require_every_step(self, call: str) -> None:
        """Raise RuntimeError unless gradients are averaged in every step, as `call` needs it."""
        return

    @abstractmethod
    def arrays(self) -> Mapping[Place, Union[np.ndarray, NDArray]]:
        """The arrays that a checkpoint needs besides those of the exchange."""

    @abstractmethod
    def load(self, arrays: Arrays, steps: int, learning_rates: Dict[int, float]) -> None:
        """Go on from a checkpoint, whose arrays were checked."""

    def check(self, file: str, arrays: Arrays, strict: bool) -> None:
        """Raise ValueError unless a file has the arrays that `arrays` returns."""
        return

    def recall(self, parameters: Sequence[Mapping[str, Any]]) -> None:
        """Choose the compressors that "auto" had chosen for a checkpoint's parameters."""
        return

    # For all

    def set_epoch(self, epoch: int) -> None:
        """Compress as in an epoch, counted from 0."""
        self._epoch = epoch
        self.exchange.channels.set_epoch(self.names(), epoch)

    def names(self, indices: Optional[Collection[int]] = None) -> Set[str]:
        """The names of the tensors of these parameters, or of all."""
        wanted = None if indices is None else set(indices)
        return {t.name for (i, _), t in self.tensors.items() if wanted is None or i in wanted}

    def with_gradients(self) -> List[int]:
        """The numbers of the parameters that have gradients, in the order of backward."""
        return [i for i in self._last_first if self._params[i].grad_req != "null"]

    def _moved(self, names: Collection[str]) -> None:
        """Let the new channels of these tensors go on in this epoch."""
        if self._epoch is not None:
            self.exchange.channels.set_epoch(names, self._epoch)

    def _facts(
        self, optimizer: Optimizer, indices: Sequence[int], new: Sequence[int]
    ) -> List[Tuple[str, Any]]:
        """Facts about the optimizer of some parameters, and about those that are new."""
        return [
            *trainer_facts.of_optimizer(optimizer, indices),
            *trainer_facts.of_parameters(optimizer, {i: self._params[i] for i in new}),
        ]
