import subprocess
import sys

from mbt_cli.core.names import own_utc_name


def test_two_processes_have_names_of_their_own_whatever_the_second():
    program = "from mbt_cli.core.names import own_utc_name; print(own_utc_name())"
    other = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.strip()

    own = own_utc_name()

    assert own.partition("Z-")[2] != other.partition("Z-")[2]
    assert own.partition("-")[0].isdigit()
