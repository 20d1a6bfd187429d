package auth

import (
	"crypto/subtle"
	"slices"
	"time"
)

// AnyTenant is the tenant of a key that speaks for others: its requests keep the fairness_id that they have.
const AnyTenant = "*"

// Key is one entry of the file: who shows its token, and what they may do.
type Key struct {
	// ID names the key in logs, measures and refusals. What a call under way is allowed, and what was used, goes by it: a key whose
	// tokens are replaced is the same key.
	ID string
	// Hashes are those of its tokens: one, or another beside it while its holders go over to that.
	Hashes []Hash
	// Tenant is the fairness_id of its generations, or AnyTenant.
	Tenant string
	// SharesPrefixes reports whether its generations use the cached prefixes of all keys that share. If not, only those of its tenant.
	SharesPrefixes bool
	Rights         []Right
	// Expires is when it ends; zero: never.
	Expires time.Time
	Limits  Limits
}

// Limits are what a key may use in one process. Zero is no bound.
type Limits struct {
	RequestsPerMinute, TokensPerMinute int
	// Streams is how many calls may be under way at once.
	Streams int
	// Priority is the highest of a generation; nil: no bound.
	Priority *int32
}

// Keys are those of a file. They do not change.
type Keys struct {
	inOrder []*Key
	byHash  map[Hash]token
	byID    map[string]*Key
}

// token is one that the file knows.
type token struct {
	hash Hash
	of   *Key
}

// newKeys takes keys with different ids and hashes.
func newKeys(all []*Key) *Keys {
	k := &Keys{inOrder: all, byHash: make(map[Hash]token, len(all)), byID: make(map[string]*Key, len(all))}
	for _, key := range all {
		k.byID[key.ID] = key
		for _, h := range key.Hashes {
			k.byHash[h] = token{h, key}
		}
	}
	return k
}

// find is the key of a token's hash, or nil. How long the look-up takes may tell how a hash begins, which nobody can choose, and
// nothing of the token; the hash found is compared in constant time all the same.
func (k *Keys) find(h Hash) *Key {
	found, is := k.byHash[h]
	if !is || subtle.ConstantTimeCompare(found.hash[:], h[:]) != 1 {
		return nil
	}
	return found.of
}

// All are the keys in the order of the file. They are not to be changed.
func (k *Keys) All() []*Key { return k.inOrder }

// expired is whether the key has ended.
func (k *Key) expired(now time.Time) bool { return !k.Expires.IsZero() && !now.Before(k.Expires) }

// may is whether the key has what a method needs.
func (k *Key) may(n need) bool {
	return n.open || n.anyKey || slices.ContainsFunc(n.rights, func(r Right) bool { return slices.Contains(k.Rights, r) })
}
