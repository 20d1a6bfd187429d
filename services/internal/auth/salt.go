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

// salt returns the cache.salt of a request of a tenant, and whether it is another one than the request has. Without it the prefix
// cache would be shared, and cached_tokens would report to one tenant what another has sent, block by block.
//
// The salt is in the request from here on, so that the scheduler's prefix keys, the worker's and the cache itself follow it. It is a
// hash of tenant and salt: it does not get longer than the contract allows, and two pairs do not make one salt. No caller makes one of
// these salts for itself: what looks like one is hashed too.
//
// At a worker a key of AnyTenant is a scheduler's, whose requests have their salts already.
func (k *Key) salt(tenant, salt string, worker bool) (made string, change bool) {
	switch {
	case k.Tenant == AnyTenant && worker, len(salt) > maxSalt, !utf8.ValidString(salt): // the last two are refused where they are decoded
		return salt, false
	case !k.SharesPrefixes && tenant != "":
		return saltOf(tenant, salt), true
	case strings.HasPrefix(salt, saltPrefix):
		return saltOf("", salt), true
	}
	return salt, false
}

// saltOf returns the salt that replaces a tenant's own; the tenant is empty for keys that share.
func saltOf(tenant, salt string) string {
	h := sha256.New()
	var length [4]byte
	binary.LittleEndian.PutUint32(length[:], uint32(len(tenant)))
	_, _ = h.Write(length[:]) // it never fails
	_, _ = h.Write([]byte(tenant + salt))
	return saltPrefix + base64.RawURLEncoding.EncodeToString(h.Sum(nil))
}
