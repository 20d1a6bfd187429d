package auth

import (
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
)

// tenanted are the methods whose requests have a tenant.
var tenanted = map[string]bool{
	pb.InferenceService_Generate_FullMethodName:   true,
	pb.InferenceService_Embed_FullMethodName:      true,
	pb.InferenceService_Rerank_FullMethodName:     true,
	pb.InferenceService_Tokenize_FullMethodName:   true,
	pb.InferenceService_Detokenize_FullMethodName: true,
}

// Field numbers of requests that have a tenant; those without a priority have no such field. A test
// compares them with the contract.
const (
	requestCache    = 10 // of GenerateRequest too
	requestPriority = 12
	requestTenant   = 13

	cacheSalt = 1 // of CacheOptions
)

// requestFields are the fields of a request that a key decides about.
type requestFields struct {
	priority     int32
	tenant, salt string
}

// endpoint is where a request is received.
type endpoint struct {
	generates bool // by Generate: it has a cache.salt
	worker    bool // at a worker
}

// check refuses a generation for another tenant, or above the key's highest priority. assign
// reports that the request names no tenant and must get the key's.
func (k *Key) check(priority int32, tenant string) (refusal *rpc.Error, assign bool) {
	if highest := k.Limits.Priority; highest != nil && priority > *highest {
		f := priorityTooHigh(k, priority, *highest)
		return &f, false
	}
	switch {
	case k.Tenant == AnyTenant, tenant == k.Tenant:
		return nil, false
	case tenant != "":
		f := otherTenant(k, tenant)
		return &f, false
	}
	return nil, true
}

// stamp checks a received request of a method in tenanted, decoded or as bytes, and assigns it to
// the key's tenant: it sets the fairness_id, and the cache.salt of a generation.
func (k *Key) stamp(m any, on endpoint) *rpc.Error {
	switch in := m.(type) {
	case *pb.GenerateRequest:
		if refusal := k.checkDecoded(in.GetPriority(), &in.FairnessId); refusal != nil {
			return refusal
		}
		if salt, change := k.salt(in.GetFairnessId(), in.GetCache().GetSalt(), on.worker); change {
			if in.Cache == nil {
				in.Cache = &pb.CacheOptions{}
			}
			in.Cache.Salt = &salt
		}
	case *pb.EmbedRequest:
		return k.checkDecoded(in.GetPriority(), &in.FairnessId)
	case *pb.RerankRequest:
		return k.checkDecoded(in.GetPriority(), &in.FairnessId)
	case *pb.TokenizeRequest:
		return k.checkDecoded(0, &in.FairnessId)
	case *pb.DetokenizeRequest:
		return k.checkDecoded(0, &in.FairnessId)
	case *rpc.Frame:
		whole := in.Data.MaterializeToBuffer(mem.DefaultBufferPool())
		f, complete := readFields(whole.ReadOnlyData())
		whole.Free()
		refusal, assign := k.check(f.priority, f.tenant)
		if refusal != nil || !complete {
			return refusal
		}
		// The last of repeated strings counts, and repeated messages are merged. So appended fields
		// take effect.
		var stamp []byte
		if assign {
			f.tenant = k.Tenant
			stamp = protowire.AppendString(protowire.AppendTag(stamp, requestTenant, protowire.BytesType), k.Tenant)
		}
		if salt, change := k.salt(f.tenant, f.salt, on.worker); change && on.generates {
			cache := protowire.AppendString(protowire.AppendTag(nil, cacheSalt, protowire.BytesType), salt)
			stamp = protowire.AppendBytes(protowire.AppendTag(stamp, requestCache, protowire.BytesType), cache)
		}
		if stamp != nil {
			in.Data = append(in.Data, mem.SliceBuffer(stamp))
		}
	}
	return nil
}

// checkDecoded is check for a decoded request. It sets the tenant.
func (k *Key) checkDecoded(priority int32, tenant **string) *rpc.Error {
	named := ""
	if *tenant != nil {
		named = **tenant
	}
	refusal, assign := k.check(priority, named)
	if assign {
		*tenant = &k.Tenant
	}
	return refusal
}

// readFields returns what decoding a request's bytes would. complete reports whether they end where
// a field ends. If not, decoding fails, and nothing may be appended, because it would be read as
// the rest of the last field.
func readFields(message []byte) (f requestFields, complete bool) {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return f, false
		}
		size := protowire.ConsumeFieldValue(number, kind, message[n:])
		if size < 0 {
			return f, false
		}
		value := message[n : n+size]
		message = message[n+size:]
		switch {
		case number == requestPriority && kind == protowire.VarintType:
			v, _ := protowire.ConsumeVarint(value)
			f.priority = int32(v)
		case number == requestTenant && kind == protowire.BytesType:
			v, _ := protowire.ConsumeString(value)
			f.tenant = v
		case number == requestCache && kind == protowire.BytesType:
			options, _ := protowire.ConsumeBytes(value)
			readSalt(options, &f.salt)
		}
	}
	return f, true
}

// readSalt reads the salt of CacheOptions, if there is one. Malformed bytes fail the decoding of
// the request later.
func readSalt(options []byte, salt *string) {
	for len(options) > 0 {
		number, kind, n := protowire.ConsumeTag(options)
		if n < 0 {
			return
		}
		size := protowire.ConsumeFieldValue(number, kind, options[n:])
		if size < 0 {
			return
		}
		if number == cacheSalt && kind == protowire.BytesType {
			*salt, _ = protowire.ConsumeString(options[n : n+size])
		}
		options = options[n+size:]
	}
}
