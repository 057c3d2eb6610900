"""Which entries there are, what each covers, and which addresses stay closed."""

import ipaddress

import pytest
from pydantic import ValidationError

from agentrl_sandbox.egress.hosts import AllowedHosts, split_authority
from agentrl_sandbox.egress.listening import variables
from agentrl_sandbox.spec import SandboxSpec

LIST = ["pypi.org", "*.example.org", "mirror.example.com:8443", "10.0.0.7:8000", "[2001:db8::7]:8000", "Upper.Example."]


@pytest.mark.parametrize(
    ("host", "port", "has"),
    [
        ("pypi.org", 443, True),
        ("pypi.org", 80, True),
        ("pypi.org", 8443, False),
        ("files.pypi.org", 443, False),
        ("notpypi.org", 443, False),
        ("a.example.org", 443, True),
        ("a.b.example.org", 80, True),
        ("example.org", 443, False),
        ("aexample.org", 443, False),
        ("example.org.evil.net", 443, False),
        ("mirror.example.com", 8443, True),
        ("mirror.example.com", 443, False),
        ("10.0.0.7", 8000, True),
        ("10.0.0.8", 8000, False),
        ("2001:db8::7", 8000, True),
        ("upper.example", 443, True),
    ],
)
def test_what_an_entry_covers(host, port, has):
    assert AllowedHosts(LIST).has(host, port) is has


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ("https://pypi.org/simple", "write the host only"),
        ("10.0.0.0/8", "write the host only"),
        ("*", "write network: open"),
        ("*.org", "covers too much"),
        ("*.10.0.0.1", "neither a name nor an address"),
        ("a*.example.org", "not a host"),
        ("user@pypi.org", "not a host"),
        ("pypi.org:0", "a port that does not exist"),
        ("pypi.org:65536", "a port that does not exist"),
        ("127.1", "neither a name nor an address"),
        ("2130706433", "neither a name nor an address"),
        ("münchen.de", "xn--"),
        ("", "not a host"),
        ("a..b", "not the name"),
        ("169.254.169.254", "credentials"),
        ("168.63.129.16:80", "credentials"),
        ("[fd00:ec2::254]", "credentials"),
        ("[fe80::1]", "credentials"),
        ("[::ffff:169.254.169.254]", "credentials"),
        ("[64:ff9b::a9fe:a9fe]", "in disguise"),
        ("0.0.0.0", "no address of one host"),
        ("255.255.255.255", "no address of one host"),
        ("224.0.0.1", "no address of one host"),
    ],
)
def test_entries_that_are_refused(entry, why):
    with pytest.raises(ValidationError, match=why):
        SandboxSpec(network=[entry])


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "100.64.0.1", "169.254.169.254", "0.0.0.0"),
        *("168.63.129.16", "100.100.100.200", "224.0.0.1", "240.0.0.1", "255.255.255.255"),
        *("::1", "::", "fe80::1", "fc00::1", "fd00:ec2::254", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.9"),
        *("64:ff9b::7f00:1", "2002:7f00:1::", "::127.0.0.1", "2001:0:7f00:1::"),
    ],
)
def test_addresses_that_a_name_does_not_open(address):
    assert AllowedHosts(LIST).refusal(ipaddress.ip_address(address))


def test_a_private_address_that_is_named_is_open_and_its_neighbour_is_not():
    hosts = AllowedHosts(["mirror.internal", "10.0.0.7"])
    assert hosts.refusal(ipaddress.ip_address("10.0.0.7")) == ""
    assert hosts.refusal(ipaddress.ip_address("::ffff:10.0.0.7")) == ""
    assert "name the address" in hosts.refusal(ipaddress.ip_address("10.0.0.8"))
    assert hosts.refusal(ipaddress.ip_address("151.101.0.223")) == ""


def test_authorities():
    assert split_authority("PyPI.org.:443") == ("pypi.org", 443)
    assert split_authority("[2001:DB8:0::7]:1") == ("2001:db8::7", 1)
    for wrong in ("a b", "a:b", "a:1:2", "[::1", "[fe80::1%eth0]", "a\0", "a%2e.org", "-a.org", "x" * 254, "[1.2.3.4]"):
        with pytest.raises(ValueError, match=r"\w"):
            split_authority(wrong)


def test_the_spec_says_what_it_opens():
    spec = SandboxSpec.model_validate({"network": ["pypi.org", "*.example.org:8443"]})
    assert spec.hosts == ("pypi.org", "*.example.org:8443")
    assert spec.loosened() == ["it reaches pypi.org, *.example.org:8443"]
    assert SandboxSpec.model_validate(spec.model_dump()) == spec
    assert hash(spec) != hash(SandboxSpec(network=["pypi.org"]))
    assert SandboxSpec().hosts == SandboxSpec(network="open").hosts == ()
    for wrong in ([], (), "pypi.org", None, 3, [3], {"a": 1}):
        with pytest.raises(ValidationError, match=r"write none, open, or a list of hosts such as \[pypi.org\]"):
            SandboxSpec(network=wrong)


def test_the_variables_are_set_in_both_cases():
    found = variables(("pypi.org",))
    assert found["HTTPS_PROXY"] == found["https_proxy"] == found["http_proxy"] == "http://127.0.0.1:3128"
    assert found["no_proxy"] == found["NO_PROXY"] == "localhost,127.0.0.1,::1"
    assert variables("none") == variables("open") == {}
