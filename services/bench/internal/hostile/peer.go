package hostile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// hold is the longest that a hostile connection stays.
const hold = 30 * time.Second

// Tally is what became of hostile connections.
type Tally struct {
	Opened  int            `json:"opened"`
	Refused int            `json:"refused"` // never made
	Closed  map[string]int `json:"closed"`  // by the server, by what they did
	Held    map[string]int `json:"held"`    // until this side left
}

// Peer opens hostile connections to a target until it has opened so many. It writes a line when the first was made or refused, and
// what became of all when ctx ends.
func Peer(ctx context.Context, target, from string, connections int, rate float64, out io.Writer) error {
	tally := Tally{Closed: map[string]int{}, Held: map[string]int{}}
	var mu sync.Mutex
	var all sync.WaitGroup
	var told error // guarded by mu
	d := net.Dialer{Timeout: hold, LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	began := time.Now()
	for i := 0; i < connections && ctx.Err() == nil; i++ {
		due := began.Add(time.Duration(float64(i) / rate * float64(time.Second)))
		if !sleep(ctx, time.Until(due)) {
			break
		}
		all.Go(func() {
			what := attacks[i%len(attacks)]
			conn, err := d.DialContext(ctx, "tcp", target)
			if err != nil && ctx.Err() != nil {
				return
			}
			mu.Lock()
			if tally.Opened+tally.Refused == 0 {
				told = begun(out)
			}
			if err != nil {
				tally.Refused++
				mu.Unlock()
				return
			}
			tally.Opened++
			mu.Unlock()
			closed := endure(ctx, conn, what)
			mu.Lock()
			defer mu.Unlock()
			if closed {
				tally.Closed[what.name]++
			} else {
				tally.Held[what.name]++
			}
		})
	}
	<-ctx.Done()
	all.Wait()
	if err := errors.Join(told, json.NewEncoder(out).Encode(tally)); err != nil {
		return fmt.Errorf("write what became of the connections: %w", err)
	}
	return nil
}

// endure does what a connection does and then waits. It reports whether the server closed it.
func endure(ctx context.Context, conn net.Conn, what attack) (closed bool) {
	defer func() { _ = conn.Close() }() // it may be closed
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	_ = conn.SetDeadline(time.Now().Add(hold)) // a closed one needs none
	err := what.run(conn)
	if err == nil {
		_, err = io.Copy(io.Discard, conn) // until the server closes
	}
	var late net.Error
	timedOut := errors.As(err, &late) && late.Timeout()
	return ctx.Err() == nil && !timedOut
}

// sleep waits, unless ctx ends.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
