package auth

import (
	"context"
	"sync"
	"time"

	"github.com/millrace/millrace/services/internal/reread"
	"github.com/millrace/millrace/services/internal/rpc"
)

// book is the keys of a server, what each has used, and the calls under way. Safe for concurrent use.
type book struct {
	keys  func() *Keys // those of the moment
	now   func() time.Time
	later func(time.Duration, func()) // calls a function once, when so much time has passed
	fault func(rpc.Fault) error       // gives a refusal its domain

	mu       sync.Mutex
	accounts map[string]*account // guarded by mu; by key id
	running  map[*visit]struct{} // guarded by mu
	watched  bool                // guarded by mu; look is to be called
	seen     *Keys               // guarded by mu; those of the last look
}

// visit is one call of a key.
type visit struct {
	key     *Key
	method  string
	account *account
	cancel  context.CancelCauseFunc
}

// cutOff is why a call was ended while it ran.
type cutOff struct{ error }

// Unwrap is the status.
func (c cutOff) Unwrap() error { return c.error }

// account is that of a key.
func (b *book) account(k *Key) *account {
	b.mu.Lock()
	defer b.mu.Unlock()
	a := b.accounts[k.ID]
	if a == nil {
		a = &account{}
		b.accounts[k.ID] = a
	}
	return a
}

// enter notes a call, which ends if its key does, until leave.
func (b *book) enter(v *visit) (leave func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.running[v] = struct{}{}
	if !b.watched {
		b.watched = true
		b.later(reread.Every, b.look)
	}
	return func() {
		b.mu.Lock()
		delete(b.running, v)
		b.mu.Unlock()
		v.account.end()
	}
}

// look ends the calls whose keys do not allow them any more, and comes again as long as there are calls.
func (b *book) look() {
	keys, now := b.keys(), b.now()
	type end struct {
		*visit
		why error
	}
	var over []end
	b.mu.Lock()
	for v := range b.running {
		if f := keys.verdict(v, now); f != nil {
			over = append(over, end{v, b.fault(*f)})
		}
	}
	if keys != b.seen {
		b.seen = keys
		b.forgetLocked(keys)
	}
	if b.watched = len(b.running) > 0; b.watched {
		b.later(reread.Every, b.look)
	}
	b.mu.Unlock()
	for _, e := range over {
		e.cancel(cutOff{e.why})
	}
}

// verdict is why a call may not go on, nil if it may.
func (k *Keys) verdict(v *visit, now time.Time) *rpc.Fault {
	var f rpc.Fault
	switch key, n := k.byID[v.key.ID], needs[v.method]; {
	case key == nil:
		f = revoked(v.key)
	case key.expired(now):
		f = expired(key)
	case !key.may(n) && len(n.rights) > 0:
		f = rightMissing(key, v.method, n)
	default:
		return nil
	}
	return &f
}

// forgetLocked forgets what keys have used that are no longer there and have no calls.
func (b *book) forgetLocked(keys *Keys) {
	stays := map[string]bool{}
	for _, k := range keys.inOrder {
		stays[k.ID] = true
	}
	for v := range b.running {
		stays[v.key.ID] = true
	}
	for id := range b.accounts {
		if !stays[id] {
			delete(b.accounts, id)
		}
	}
}
