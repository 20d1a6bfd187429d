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
	requestPriority = 12
	requestTenant   = 13
)

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

// stamp checks a received request of a method in tenanted, decoded or as its bytes, and makes it the key's tenant's.
func (k *Key) stamp(m any) *rpc.Fault {
	switch in := m.(type) {
	case *pb.GenerateRequest:
		return k.own(in.GetPriority(), &in.FairnessId)
	case *pb.TokenizeRequest:
		return k.own(0, &in.FairnessId)
	case *pb.DetokenizeRequest:
		return k.own(0, &in.FairnessId)
	case *rpc.Frame:
		whole := in.Data.MaterializeToBuffer(mem.DefaultBufferPool())
		priority, tenant, ends := read(whole.ReadOnlyData())
		whole.Free()
		refusal, give := k.check(priority, tenant)
		if give && ends { // of a text that is there twice the last counts
			stamp := protowire.AppendTag(nil, requestTenant, protowire.BytesType)
			in.Data = append(in.Data, mem.SliceBuffer(protowire.AppendString(stamp, k.Tenant)))
		}
		return refusal
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

// read is what a request's bytes say of priority and tenant, as decoding them would. ends is whether they end where a field does: else
// they are no message, decoding them fails, and nothing may be appended, which would be read as the rest of their last field.
func read(message []byte) (priority int32, tenant string, ends bool) {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return priority, tenant, false
		}
		size := protowire.ConsumeFieldValue(number, kind, message[n:])
		if size < 0 {
			return priority, tenant, false
		}
		value := message[n : n+size]
		message = message[n+size:]
		switch {
		case number == requestPriority && kind == protowire.VarintType:
			v, _ := protowire.ConsumeVarint(value)
			priority = int32(v)
		case number == requestTenant && kind == protowire.BytesType:
			v, _ := protowire.ConsumeString(value)
			tenant = v
		}
	}
	return priority, tenant, true
}
