package auth

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/prefixhash"
)

// stamped returns a request with a salt as a server passes it on for a key. It is the same for
// bytes and for a decoded request.
func stamped(t *testing.T, k *Key, worker bool, tenant, salt *string) *pb.GenerateRequest {
	t.Helper()
	in := &pb.GenerateRequest{Model: "m", Input: &pb.GenerateRequest_Prompt{Prompt: strings.Repeat("x", 600)}, FairnessId: tenant}
	if salt != nil {
		in.Cache = &pb.CacheOptions{Salt: salt, BypassPrefixCache: proto.Bool(false)}
	}
	bytes, out := frame(t, in), &pb.GenerateRequest{}
	require.Nil(t, k.stamp(bytes, endpoint{generates: true, worker: worker}))
	require.NoError(t, proto.Unmarshal(bytes.Data.Materialize(), out))
	require.Nil(t, k.stamp(in, endpoint{generates: true, worker: worker}))
	require.True(t, proto.Equal(in, out), "%v\n%v", in, out)
	require.LessOrEqual(t, len(out.GetCache().GetSalt()), maxSalt)
	return out
}

// TestTenantsShareNoPrefixes checks that requests of two tenants have no prefix in common, whatever
// salts they choose, and that requests of one tenant with one salt have.
func TestTenantsShareNoPrefixes(t *testing.T) {
	a, b := &Key{ID: "a", Tenant: "a"}, &Key{ID: "b", Tenant: "b"}
	other := &Key{ID: "a2", Tenant: "a"}
	shares, also := &Key{ID: "s", Tenant: "s", SharesPrefixes: true}, &Key{ID: "s2", Tenant: "s2", SharesPrefixes: true}
	gateway := &Key{ID: "g", Tenant: AnyTenant}
	is := proto.String
	forged := saltOf("a", "")
	prefixes := func(k *Key, tenant, salt *string) []prefixhash.Prefix {
		all, _ := prefixhash.Of(stamped(t, k, false, tenant, salt))
		require.Len(t, all, 2)
		return all
	}
	for name, tc := range map[string]struct {
		one, two []prefixhash.Prefix
		same     bool
	}{
		"two tenants":                         {prefixes(a, nil, nil), prefixes(b, nil, nil), false},
		"two tenants with one salt":           {prefixes(a, nil, is("x")), prefixes(b, nil, is("x")), false},
		"one tenant":                          {prefixes(a, nil, nil), prefixes(a, is("a"), is("")), true},
		"two keys of one tenant":              {prefixes(a, nil, is("x")), prefixes(other, nil, is("x")), true},
		"one tenant with two salts":           {prefixes(a, nil, is("x")), prefixes(a, nil, is("y")), false},
		"a tenant and who forges its salt":    {prefixes(a, nil, nil), prefixes(b, nil, &forged), false},
		"a tenant and who shares":             {prefixes(a, nil, nil), prefixes(shares, nil, nil), false},
		"who shares with others who share":    {prefixes(shares, nil, nil), prefixes(also, nil, nil), true},
		"who shares and forges":               {prefixes(a, nil, nil), prefixes(shares, nil, &forged), false},
		"a tenant of a gateway":               {prefixes(gateway, is("c"), nil), prefixes(gateway, is("d"), nil), false},
		"a tenant itself and by a gateway":    {prefixes(gateway, is("a"), nil), prefixes(a, nil, nil), true},
		"a gateway that forges for nobody":    {prefixes(gateway, nil, &forged), prefixes(a, nil, nil), false},
		"a salt that runs into the tenant":    {prefixes(&Key{ID: "ax", Tenant: "ax"}, nil, nil), prefixes(a, nil, is("x")), false},
		"the longest salt of two long tenant": {prefixes(&Key{ID: "l", Tenant: strings.Repeat("l", 128)}, nil, is(strings.Repeat("s", 128))), prefixes(a, nil, nil), false},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.same {
				require.Equal(t, tc.one, tc.two)
				return
			}
			for i := range tc.one {
				require.NotEqual(t, tc.one[i].Key, tc.two[i].Key)
			}
		})
	}
}

// TestWorkerKeepsSaltOfScheduler checks that a worker keeps the salts that a scheduler passes on,
// so that both name the same prefixes.
func TestWorkerKeepsSaltOfScheduler(t *testing.T) {
	tenant, scheduler := &Key{ID: "a", Tenant: "a"}, &Key{ID: "scheduler", Tenant: AnyTenant}
	for _, salt := range []*string{nil, proto.String("x"), proto.String(saltPrefix)} {
		first := stamped(t, tenant, false, nil, salt)
		second := proto.CloneOf(first)
		require.Nil(t, scheduler.stamp(second, endpoint{generates: true, worker: true}))
		require.True(t, proto.Equal(first, second))
		direct := stamped(t, tenant, true, nil, salt)
		require.Equal(t, first.GetCache().GetSalt(), direct.GetCache().GetSalt(), "a tenant that calls a worker itself shares with itself")
	}
}

// TestSaltBeyondBoundStays checks that a salt that the contract refuses is passed on and refused.
func TestSaltBeyondBoundStays(t *testing.T) {
	k := &Key{ID: "a", Tenant: "a"}
	for _, salt := range []string{strings.Repeat("s", maxSalt+1), "\xff"} {
		made, change := k.salt("a", salt, false)
		require.False(t, change)
		require.Equal(t, salt, made)
	}
}
