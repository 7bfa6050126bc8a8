package kind

import (
	"flag"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite golden files")

// three nodes as kubectl shows them, of which only what matters.
const three = `{"items":[
 {"metadata":{"name":"heddle-control-plane"},"spec":{"podCIDRs":["10.244.0.0/24","fd00:10:244::/64"]},
  "status":{"addresses":[{"type":"InternalIP","address":"172.18.0.4"},{"type":"InternalIP","address":"fc00:f853::4"},{"type":"Hostname","address":"heddle-control-plane"}]}},
 {"metadata":{"name":"heddle-worker"},"spec":{"podCIDRs":["10.244.1.0/24","fd00:10:244:1::/64"]},
  "status":{"addresses":[{"type":"InternalIP","address":"fc00:f853::3"},{"type":"InternalIP","address":"172.18.0.3"}]}},
 {"metadata":{"name":"heddle-worker2"},"spec":{"podCIDRs":["10.244.2.0/24","fd00:10:244:2::/64"]},
  "status":{"addresses":[{"type":"InternalIP","address":"172.18.0.2"},{"type":"InternalIP","address":"fc00:f853::2"}]}}]}`

func TestNetworkScript(t *testing.T) {
	places, err := parsePlaces([]byte(three))
	if err != nil {
		t.Fatal(err)
	}
	got, err := networkScript("heddle-worker", places)
	if err != nil {
		t.Fatal(err)
	}
	const golden = "testdata/worker.sh"
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestPlacesNotYet(t *testing.T) {
	for name, c := range map[string]struct{ from, to, want string }{
		"no range yet":         {`"podCIDRs":["10.244.1.0/24","fd00:10:244:1::/64"]`, ``, "not one of each family"},
		"one range only":       {`"10.244.1.0/24","fd00:10:244:1::/64"`, `"10.244.1.0/24"`, "not one of each family"},
		"no IPv6 address":      {`{"type":"InternalIP","address":"fc00:f853::3"},`, ``, "no address of that family"},
		"an address of a name": {`"172.18.0.3"`, `"worker"`, `unable to parse IP`},
		"not JSON":             {`{"items"`, `items`, "read the nodes"},
	} {
		_, err := parsePlaces([]byte(strings.Replace(three, c.from, c.to, 1)))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", name, err, c.want)
		}
	}
}
