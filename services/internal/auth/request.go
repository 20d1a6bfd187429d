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
	pb.InferenceService_Tokenize_FullMethodName:   true,
	pb.InferenceService_Detokenize_FullMethodName: true,
}

// Field numbers of the requests that have a tenant, GenerateRequest's alone for the priority; a test ties them to the contract.
const (
	requestCache    = 10 // of GenerateRequest too
	requestPriority = 12
	requestTenant   = 13

	cacheSalt = 1 // of CacheOptions
)

// facts are what of a request a key decides about.
type facts struct {
	priority     int32
	tenant, salt string
}

// place is where a request is received.
type place struct {
	generates bool // by Generate: it has a cache.salt
	worker    bool // at a worker
}

// check refuses a generation of another tenant, or above the key's highest priority. A request that names no tenant is to get the
// key's.
func (k *Key) check(priority int32, tenant string) (refusal *rpc.Fault, give bool) {
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

// stamp checks a received request of a method in tenanted, decoded or as its bytes, and makes it the key's tenant's: with its
// fairness_id, and a generation with a cache.salt of its own.
func (k *Key) stamp(m any, at place) *rpc.Fault {
	switch in := m.(type) {
	case *pb.GenerateRequest:
		if refusal := k.own(in.GetPriority(), &in.FairnessId); refusal != nil {
			return refusal
		}
		if salt, change := k.salt(in.GetFairnessId(), in.GetCache().GetSalt(), at.worker); change {
			if in.Cache == nil {
				in.Cache = &pb.CacheOptions{}
			}
			in.Cache.Salt = &salt
		}
	case *pb.TokenizeRequest:
		return k.own(0, &in.FairnessId)
	case *pb.DetokenizeRequest:
		return k.own(0, &in.FairnessId)
	case *rpc.Frame:
		whole := in.Data.MaterializeToBuffer(mem.DefaultBufferPool())
		f, ends := read(whole.ReadOnlyData())
		whole.Free()
		refusal, give := k.check(f.priority, f.tenant)
		if refusal != nil || !ends {
			return refusal
		}
		// Of a text that is there twice the last counts, and a message that is there twice is merged.
		var stamp []byte
		if give {
			f.tenant = k.Tenant
			stamp = protowire.AppendString(protowire.AppendTag(stamp, requestTenant, protowire.BytesType), k.Tenant)
		}
		if salt, change := k.salt(f.tenant, f.salt, at.worker); change && at.generates {
			cache := protowire.AppendString(protowire.AppendTag(nil, cacheSalt, protowire.BytesType), salt)
			stamp = protowire.AppendBytes(protowire.AppendTag(stamp, requestCache, protowire.BytesType), cache)
		}
		if stamp != nil {
			in.Data = append(in.Data, mem.SliceBuffer(stamp))
		}
	}
	return nil
}

// own is check of a decoded request, whose tenant it sets.
func (k *Key) own(priority int32, tenant **string) *rpc.Fault {
	named := ""
	if *tenant != nil {
		named = **tenant
	}
	refusal, give := k.check(priority, named)
	if give {
		*tenant = &k.Tenant
	}
	return refusal
}

// read is what a request's bytes say, as decoding them would. ends is whether they end where a field does: else they are no message,
// decoding them fails, and nothing may be appended, which would be read as the rest of their last field.
func read(message []byte) (f facts, ends bool) {
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

// readSalt reads the salt of CacheOptions, if it is there. Bytes that are no message fail the decoding of the request.
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
