package translate

import (
	"math/rand/v2"
	"strconv"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/gateway/internal/httpapi"
	"github.com/millrace/millrace/services/gateway/internal/strictjson"
	"github.com/millrace/millrace/services/gateway/internal/target"
)

// Seed is an integer in [-2^63, 2^64). A negative one has the bits of its two's complement.
type Seed struct {
	Bits uint64
	// Text is the number as the client wrote it.
	Text string
}

// DecodeJSON implements strictjson.Value.
func (s *Seed) DecodeJSON(d *strictjson.Decoder) error {
	if kind := d.Kind(); kind != strictjson.Number {
		return d.Errorf("is %s: must be an integer", kind)
	}
	var raw strictjson.Raw
	if err := d.Decode(&raw); err != nil {
		return err
	}
	s.Text = string(raw)
	if n, err := strconv.ParseUint(s.Text, 10, 64); err == nil {
		s.Bits = n
		return nil
	}
	n, err := strconv.ParseInt(s.Text, 10, 64)
	if err != nil {
		return d.Errorf("is %.32s: must be an integer of at most 64 bits", s.Text)
	}
	s.Bits = uint64(n)
	return nil
}

// exactIntegers is the number of seeds that a client of any language reads exactly from JSON, where
// numbers may be doubles.
const exactIntegers = 1 << 53

// OrDrawn returns s, or a random seed if s is nil, so that every answer can be repeated from what it
// reports.
func (s *Seed) OrDrawn() *Seed {
	if s != nil {
		return s
	}
	n := rand.Uint64N(exactIntegers)
	return &Seed{n, strconv.FormatUint(n, 10)}
}

// SetTenant sets whose share of the servers a request uses: the first name that is set and not
// empty.
func SetTenant(in *pb.GenerateRequest, names ...*string) {
	for _, name := range names {
		if name != nil && *name != "" {
			id := target.Token(*name)
			in.FairnessId = &id
			return
		}
	}
}

// priorities are the priorities of OpenAI's service tiers.
var priorities = map[string]int32{"auto": 0, "default": 0, "flex": -1, "priority": 1}

// SetPriority sets the urgency of a request from OpenAI's service_tier; nil is auto.
func SetPriority(in *pb.GenerateRequest, tier *string) error {
	if tier == nil {
		return nil
	}
	priority, ok := priorities[*tier]
	if !ok {
		return httpapi.Invalid("service_tier", "is %.32q: must be auto, default, flex or priority", *tier)
	}
	if priority != 0 {
		in.Priority = &priority
	}
	return nil
}

// Field is a field of a request that the gateway knows and does not honour.
type Field struct {
	Param string
	// Set reports whether the request has it with a value that matters.
	Set bool
	// Why continues "is not supported: "; it is not needed for Skip.
	Why string
}

// Refuse refuses the first field that is set.
func Refuse(fields ...Field) error {
	for _, f := range fields {
		if f.Set {
			return httpapi.Unsupported(f.Param, "is not supported: %s", f.Why)
		}
	}
	return nil
}

// Skip skips the fields that are set.
func Skip(x *httpapi.Exchange, fields ...Field) error {
	for _, f := range fields {
		if f.Set {
			if err := x.Skip(f.Param); err != nil {
				return err
			}
		}
	}
	return nil
}

// Start begins the generation of a request. tenant is the path of the field that names its tenant.
// The field is skipped if the server has keys, which have tenants of their own.
func Start(x *httpapi.Exchange, client *target.Client, in *pb.GenerateRequest, tenant string) (*target.Generation, error) {
	g, err := client.Generate(x.Context(), in)
	if err == nil && g.OwnTenant {
		err = x.Skip(tenant)
	}
	return g, err
}
