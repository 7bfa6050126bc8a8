package services

import (
	"fmt"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/heddle-mesh/heddle/internal/meshtest"
)

// Others write their own rules without a pause: ours are neither seen as
// changed nor replaced, though every look falls into a change.
func TestOthersWrite(t *testing.T) {
	ns := meshtest.NetNS(t)
	stop, wrote := make(chan struct{}), make(chan int, 1)
	// Their table is before ours in the kernel's list, or what they do to it does
	// not move ours.
	ns.Do(func() {
		b := &batch{table: "another", st: &Stats{}}
		b.add(unix.NFT_MSG_NEWTABLE, netlink.Create, word(unix.NFTA_TABLE_NAME, b.table))
		if err := b.commit(); err != nil {
			t.Error(err)
		}
	})
	ns.Go(func() {
		n := 0
		defer func() { wrote <- n }()
		for ; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			b := &batch{table: "another", st: &Stats{}}
			for i := range 300 {
				if c := fmt.Sprint("c", i); n%2 == 0 {
					b.newChain(chain{name: c})
				} else {
					b.add(unix.NFT_MSG_DELCHAIN, 0, word(unix.NFTA_CHAIN_TABLE, b.table), word(unix.NFTA_CHAIN_NAME, c))
				}
			}
			if err := b.commit(); err != nil {
				t.Error(err)
				return
			}
		}
	})
	ns.Do(func() {
		defer close(stop)
		rules := sample()
		for i := range 200 { // more than one dump's message holds
			rules.Keys[Key{addr("10.97.0.1"), 6, uint16(1 + i)}] = Target{Forward, fmt.Sprintf("many/s/tcp/%d/v4", i), endpoints(false, 1)}
		}
		table := New(nil)
		if _, err := table.Apply(rules); err != nil {
			t.Error(err)
			return
		}
		handle := tableHandle(t)
		for i := range 30 {
			if meddled, err := table.Meddled(true); meddled || err != nil {
				t.Errorf("look %d: meddled %v, %v", i, meddled, err)
			}
			if i%10 == 0 {
				table = New(nil)
				if _, err := table.Apply(rules); err != nil {
					t.Errorf("look %d: %v", i, err)
				}
			}
			if now := tableHandle(t); now != handle {
				t.Errorf("look %d: the table was replaced", i)
				handle = now
			}
		}
	})
	t.Log("the other wrote ", <-wrote, " times")
}

const tableHandleAttr = 4 // NFTA_TABLE_HANDLE (linux/netfilter/nf_tables.h)

// tableHandle is the number that the kernel gave our table when it was made.
func tableHandle(t *testing.T) (handle string) {
	body, err := netlink.MarshalAttributes([]netlink.Attribute{word(unix.NFTA_TABLE_NAME, tableName)})
	if err != nil {
		t.Error(err)
	}
	list, err := ask(message(unix.NFT_MSG_GETTABLE, 0, unix.NFPROTO_INET, body))
	if err != nil || len(list) == 0 {
		t.Errorf("%v, %v", list, err)
		return ""
	}
	attrs, err := netlink.UnmarshalAttributes(list[0].Data[nfHeader:])
	if err != nil {
		t.Error(err)
	}
	for _, a := range attrs {
		if a.Type == tableHandleAttr {
			handle = fmt.Sprintf("%x", a.Data)
		}
	}
	return handle
}
