package auth

import (
	"context"
	"sync"
	"time"

	"github.com/millrace/millrace/services/internal/filewatch"
	"github.com/millrace/millrace/services/internal/rpc"
)

// registry holds the keys of a server, what each has used, and the running calls. It is safe for
// concurrent use.
type registry struct {
	keys       func() *Keys // returns the current keys
	now        func() time.Time
	afterFunc  func(time.Duration, func()) // calls a function once after a time
	withDomain func(rpc.Error) error       // sets the domain of a refusal

	mu       sync.Mutex
	accounts map[string]*account      // guarded by mu; by key id
	running  map[*activeCall]struct{} // guarded by mu
	watched  bool                     // guarded by mu; a sweep is scheduled
	lastKeys *Keys                    // guarded by mu; the keys of the last sweep
}

// activeCall is a running call of a key.
type activeCall struct {
	key     *Key
	method  string
	account *account
	cancel  context.CancelCauseFunc
}

// cutOffError is the cause with which a running call is cancelled.
type cutOffError struct{ error }

// Unwrap returns the status.
func (c cutOffError) Unwrap() error { return c.error }

// account returns the account of a key.
func (r *registry) account(k *Key) *account {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.accounts[k.ID]
	if a == nil {
		a = &account{}
		r.accounts[k.ID] = a
	}
	return a
}

// add registers a call, which ends when its key does. The caller must call remove.
func (r *registry) add(v *activeCall) (remove func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running[v] = struct{}{}
	if !r.watched {
		r.watched = true
		r.afterFunc(filewatch.Every, r.sweep)
	}
	return func() {
		r.mu.Lock()
		delete(r.running, v)
		r.mu.Unlock()
		v.account.release()
	}
}

// sweep cancels the calls whose keys no longer allow them. It schedules itself again while there
// are calls.
func (r *registry) sweep() {
	keys, now := r.keys(), r.now()
	type end struct {
		*activeCall
		why error
	}
	var over []end
	r.mu.Lock()
	for v := range r.running {
		if f := keys.refusalOf(v, now); f != nil {
			over = append(over, end{v, r.withDomain(*f)})
		}
	}
	if keys != r.lastKeys {
		r.lastKeys = keys
		r.forgetLocked(keys)
	}
	if r.watched = len(r.running) > 0; r.watched {
		r.afterFunc(filewatch.Every, r.sweep)
	}
	r.mu.Unlock()
	for _, e := range over {
		e.cancel(cutOffError{e.why})
	}
}

// refusalOf returns why a call must end, or nil.
func (k *Keys) refusalOf(v *activeCall, now time.Time) *rpc.Error {
	var f rpc.Error
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

// forgetLocked deletes the accounts of keys that are no longer in the file and have no calls.
func (r *registry) forgetLocked(keys *Keys) {
	stays := map[string]bool{}
	for _, k := range keys.inOrder {
		stays[k.ID] = true
	}
	for v := range r.running {
		stays[v.key.ID] = true
	}
	for id := range r.accounts {
		if !stays[id] {
			delete(r.accounts, id)
		}
	}
}
