package auth

import (
	"crypto/subtle"
	"slices"
	"time"
)

// AnyTenant is the tenant of a key that acts for other tenants: its requests keep their
// fairness_id.
const AnyTenant = "*"

// Key is one entry of the file: a caller and its rights.
type Key struct {
	// ID names the key in logs, metrics and refusals. Running calls and usage are tracked by it, so
	// a key whose tokens are replaced is the same key.
	ID string
	// Hashes are the hashes of its tokens: one, or two while its holders change from one token to
	// another.
	Hashes []Hash
	// Tenant is the fairness_id of its generations, or AnyTenant.
	Tenant string
	// SharesPrefixes reports whether its generations use the cached prefixes of all keys that
	// share. If not, they use those of its tenant only.
	SharesPrefixes bool
	Rights         []Right
	// Expires is when it ends; zero: never.
	Expires time.Time
	Limits  Limits
}

// Limits bound the usage of a key in one process. Zero means unbounded.
type Limits struct {
	RequestsPerMinute, TokensPerMinute int
	// Streams bounds the running calls.
	Streams int
	// Priority is the highest priority of a generation; nil: no bound.
	Priority *int32
}

// Keys are the keys of a file. They are immutable.
type Keys struct {
	inOrder []*Key
	byHash  map[Hash]hashedKey
	byID    map[string]*Key
}

// hashedKey is a key with one of its hashes.
type hashedKey struct {
	hash Hash
	key  *Key
}

// newKeys returns the Keys of keys with different ids and hashes.
func newKeys(all []*Key) *Keys {
	k := &Keys{inOrder: all, byHash: make(map[Hash]hashedKey, len(all)), byID: make(map[string]*Key, len(all))}
	for _, key := range all {
		k.byID[key.ID] = key
		for _, h := range key.Hashes {
			k.byHash[h] = hashedKey{h, key}
		}
	}
	return k
}

// find returns the key of a token's hash, or nil. The time of the map lookup may reveal how a hash
// begins. A caller cannot choose that, and it reveals nothing of the token. The hash is compared in
// constant time nevertheless.
func (k *Keys) find(h Hash) *Key {
	found, ok := k.byHash[h]
	if !ok || subtle.ConstantTimeCompare(found.hash[:], h[:]) != 1 {
		return nil
	}
	return found.key
}

// All returns the keys in the order of the file. The caller must not change them.
func (k *Keys) All() []*Key { return k.inOrder }

// expired reports whether the key has ended.
func (k *Key) expired(now time.Time) bool { return !k.Expires.IsZero() && !now.Before(k.Expires) }

// may reports whether the key has a right that a method needs.
func (k *Key) may(n need) bool {
	return n.open || n.anyKey || slices.ContainsFunc(n.rights, func(r Right) bool { return slices.Contains(k.Rights, r) })
}
