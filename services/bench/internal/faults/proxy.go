package faults

import (
	"context"
	"net"
	"sync"
)

// proxy forwards the connections of a TCP address to a unix socket. While it is cut, it holds bytes
// and ends of connections both ways and closes nothing, as when a cable is pulled; it accepts new
// connections and does not answer them. When it is healed, everything held is forwarded.
type proxy struct {
	lis    net.Listener
	socket string
	wg     sync.WaitGroup

	mu     sync.Mutex
	cut    chan struct{}         // guarded by mu; closed by heal, nil unless cut
	conns  map[net.Conn]struct{} // guarded by mu; nil once closed
	closed chan struct{}
}

// newProxy listens on a free loopback address. The caller closes it.
func newProxy(ctx context.Context, socket string) (*proxy, error) {
	var lc net.ListenConfig
	lis, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{lis: lis, socket: socket, conns: map[net.Conn]struct{}{}, closed: make(chan struct{})}
	p.wg.Go(p.accept)
	return p, nil
}

func (p *proxy) address() string { return p.lis.Addr().String() }

// Cut holds everything until Heal.
func (p *proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cut == nil {
		p.cut = make(chan struct{})
	}
}

// Heal forwards everything that was held.
func (p *proxy) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cut != nil {
		close(p.cut)
		p.cut = nil
	}
}

// close ends every connection and waits for its goroutines.
func (p *proxy) close() error {
	err := p.lis.Close()
	p.mu.Lock()
	close(p.closed)
	for c := range p.conns {
		_ = c.Close() // unsent bytes are dropped
	}
	p.conns = nil
	p.mu.Unlock()
	p.wg.Wait()
	return err
}

func (p *proxy) accept() {
	for {
		c, err := p.lis.Accept()
		if err != nil {
			return // closed
		}
		if p.keep(c) {
			p.wg.Go(func() { p.carry(c) })
		}
	}
}

// keep adds a connection, or closes it if the proxy is closed.
func (p *proxy) keep(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conns == nil {
		_ = c.Close()
		return false
	}
	p.conns[c] = struct{}{}
	return true
}

// drop closes and removes connections.
func (p *proxy) drop(conns ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		_ = c.Close() // the other side has closed it, or there is none
		delete(p.conns, c)
	}
}

// carry forwards one connection until either side closes it.
func (p *proxy) carry(in net.Conn) {
	p.gate()
	var d net.Dialer
	out, err := d.Dial("unix", p.socket)
	if err != nil {
		if tcp, ok := in.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // a reset, as of a port without a listener
		}
		p.drop(in)
		return
	}
	if !p.keep(out) {
		return
	}
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
		both.Go(func() {
			p.copy(way[1], way[0])
			p.drop(in, out)
		})
	}
	both.Wait()
}

// copy copies until either end is closed. Bytes that were read before a cut and not written are
// held too.
func (p *proxy) copy(to, from net.Conn) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		p.gate()
		if n > 0 {
			if _, failed := to.Write(buffer[:n]); failed != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// gate waits while the proxy is cut.
func (p *proxy) gate() {
	for {
		p.mu.Lock()
		cut := p.cut
		p.mu.Unlock()
		if cut == nil {
			return
		}
		select {
		case <-cut:
		case <-p.closed:
			return
		}
	}
}
