package flows

import (
	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// track makes the kernel track connections: it does where a rule asks for it.
func track() error {
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	table := conn.AddTable(&nftables.Table{Name: "track", Family: nftables.TableFamilyINet})
	for name, hook := range map[string]*nftables.ChainHook{"out": nftables.ChainHookOutput, "in": nftables.ChainHookPrerouting} {
		c := conn.AddChain(&nftables.Chain{Name: name, Table: table, Type: nftables.ChainTypeNAT, Hooknum: hook, Priority: nftables.ChainPriorityNATDest})
		conn.AddRule(&nftables.Rule{Table: table, Chain: c, Exprs: []expr.Any{&expr.Ct{Register: 1, Key: expr.CtKeySTATE}}})
	}
	return conn.Flush()
}
