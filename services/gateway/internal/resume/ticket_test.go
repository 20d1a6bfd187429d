package resume

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"hash"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// largest is a ticket of the longest id.
func largest() *Ticket {
	t := &Ticket{Origin: Origin{
		Name: strings.Repeat("n", maxText), Created: -1, Seed: math.MaxUint64, ClassID: strings.Repeat("c", maxText), ContextLength: math.MaxUint32,
		CachedTokens: math.MaxUint32, Check: [checkBytes]byte{1},
	}, Position: Position{Inexact: true, Events: math.MaxUint64}}
	for range maxOutputs + 1 {
		t.Outputs = append(t.Outputs, Sent{math.MaxUint32, math.MaxUint64, math.MaxUint64, math.MaxUint32})
	}
	return t
}

// sealed returns the id of a ticket.
func sealed(t *Ticket, mac hash.Hash) string {
	s := sealer{mac: mac}
	s.begin(&t.Origin)
	return string(s.seal(nil, &t.Position))
}

func TestTicketsAreRead(t *testing.T) {
	mac := hmac.New(sha256.New, []byte("key"))
	small := &Ticket{Position: Position{Outputs: make([]Sent, 2)}}
	for _, ticket := range []*Ticket{largest(), small} {
		id := sealed(ticket, mac)
		require.LessOrEqual(t, len(id), MaxIDLength)
		got, err := unseal(id, mac, len(ticket.Outputs)-1)
		require.NoError(t, err)
		require.Equal(t, ticket, got)
		_, err = unseal(id, mac, len(ticket.Outputs))
		require.ErrorIs(t, err, errTicket)
		_, err = unseal(id, hmac.New(sha256.New, []byte("other")), len(ticket.Outputs)-1)
		require.ErrorIs(t, err, errTicket)
	}
}

func FuzzTicket(f *testing.F) {
	mac := hmac.New(sha256.New, []byte("key"))
	for _, t := range []*Ticket{largest(), {Position: Position{Outputs: make([]Sent, 2)}}} {
		raw, _ := base64.RawURLEncoding.DecodeString(sealed(t, mac))
		f.Add(raw[:len(raw)-macBytes], len(t.Outputs)-1)
	}
	f.Fuzz(func(t *testing.T, content []byte, outputs int) {
		outputs &= 15
		mac.Reset()
		mac.Write(content)
		ticket, err := unseal(base64.RawURLEncoding.EncodeToString(mac.Sum(content)[:len(content)+macBytes]), mac, outputs)
		if err != nil {
			return
		}
		again, err := unseal(sealed(ticket, mac), mac, outputs)
		require.NoError(t, err)
		require.Equal(t, ticket, again)
	})
}
