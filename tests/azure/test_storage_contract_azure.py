"""The store contract on Azure's emulator. Google Cloud Storage takes the same code path and has no emulator here."""

from collections.abc import Callable
from typing import Any

import pytest
import storage_contract

from statebed.errors import BucketMissingError, CredentialsError
from statebed.storage import ObjectStore, get_storage_provider, probe_put_if_absent

pytestmark = pytest.mark.azure


@pytest.mark.parametrize("case", storage_contract.CASES, ids=lambda case: case.__name__)
def test_store_contract(case: Callable[[ObjectStore], None], azure_store: ObjectStore) -> None:
    case(azure_store)


def test_a_wrong_key_is_refused_and_nothing_is_written(
    azure_server: Any, azure_url: str, azure_store: ObjectStore
) -> None:
    wrong = {**azure_server.options, "azure_storage_account_key": "bWlzdGFrZW4="}
    store = get_storage_provider(azure_url, wrong)
    verbs: tuple[Callable[[], object], ...] = (
        lambda: store.put_if_absent("a", b"x"),
        lambda: store.get("a"),
        lambda: store.delete("a"),
        lambda: probe_put_if_absent(store),
    )
    for verb in verbs:
        with pytest.raises(CredentialsError) as caught:
            verb()
        assert "AZURE_STORAGE_ACCOUNT_KEY" in caught.value.fix
        assert "bWlzdGFrZW4=" not in str(caught.value)
    assert list(azure_store.list("")) == []


def test_a_missing_container_is_an_error_of_its_own(azure_server: Any) -> None:
    store = get_storage_provider("az://no-such-container/state", azure_server.options)
    with pytest.raises(BucketMissingError):
        probe_put_if_absent(store)
    with pytest.raises(BucketMissingError):
        store.put_if_absent("a", b"x")
