package limit

import "net/netip"

// Client returns who counts as one client: an IPv4 address, or the /64 of an IPv6
// address, since one client has all of that.
func Client(a netip.Addr) netip.Addr {
	a = a.Unmap().WithZone("")
	if a.Is6() {
		p, _ := a.Prefix(64) // 64 bits fit
		a = p.Addr()
	}
	return a
}

// ClientOf is Client of an address with a port, as net/http and net.Conn give it.
// The zero Addr stands for all who have no address.
func ClientOf(remote string) netip.Addr {
	ap, err := netip.ParseAddrPort(remote)
	if err != nil {
		return netip.Addr{}
	}
	return Client(ap.Addr())
}
