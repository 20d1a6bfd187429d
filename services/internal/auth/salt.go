package auth

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"strings"
	"unicode/utf8"
)

const (
	// maxSalt is the contract's bound of a cache.salt.
	maxSalt = 128
	// saltPrefix begins the salts that a Guard makes.
	saltPrefix = "tenant:"
)

// salt returns the cache.salt for a request of a tenant, and whether it differs from the request's.
// Without it tenants would share the prefix cache, and cached_tokens would reveal to one tenant,
// block by block, what another has sent.
//
// The salt is part of the request from here on, so the scheduler's prefix keys, the worker's and
// the cache itself follow it. It is a hash of tenant and salt, so its length is within the
// contract's bound, and two pairs never give the same salt. A caller cannot make such a salt
// itself, because a salt that looks like one is hashed too.
//
// At a worker, a key of AnyTenant belongs to a scheduler, whose requests have their salts already.
func (k *Key) salt(tenant, salt string, worker bool) (made string, change bool) {
	switch {
	// the last two are refused where they are decoded
	case k.Tenant == AnyTenant && worker, len(salt) > maxSalt, !utf8.ValidString(salt):
		return salt, false
	case !k.SharesPrefixes && tenant != "":
		return saltOf(tenant, salt), true
	case strings.HasPrefix(salt, saltPrefix):
		return saltOf("", salt), true
	}
	return salt, false
}

// saltOf returns the salt that replaces a tenant's own. tenant is "" for keys that share.
func saltOf(tenant, salt string) string {
	h := sha256.New()
	var length [4]byte
	binary.LittleEndian.PutUint32(length[:], uint32(len(tenant)))
	_, _ = h.Write(length[:]) // never fails
	_, _ = h.Write([]byte(tenant + salt))
	return saltPrefix + base64.RawURLEncoding.EncodeToString(h.Sum(nil))
}
