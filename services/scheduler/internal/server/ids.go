package server

import (
	"encoding/binary"
	"math"
	"math/bits"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/scheduler/internal/fault"
)

// longRequest is how many bytes a request has whose token ids are read apart: of a long prompt of ids, protobuf's own reading takes
// more time than everything else that routing does.
const longRequest = 4 << 10

// Fields of a GenerateRequest.
var (
	tokenIDsField = (&pb.GenerateRequest{}).ProtoReflect().Descriptor().Fields().ByName("token_ids")
	idsNumber     = (&pb.TokenIds{}).ProtoReflect().Descriptor().Fields().ByName("ids").Number()
)

// decodeGeneration is rpc.Decode of a GenerateRequest.
func decodeGeneration(raw []byte) (*pb.GenerateRequest, error) {
	in := &pb.GenerateRequest{}
	if len(raw) >= longRequest {
		if begin, end, list, alone := findIDs(raw); alone {
			if ids, ok := readIDs(list); ok {
				rest := slices.Concat(raw[:begin], raw[end:])
				if err := rpc.Decode(rest, in, fault.Domain); err != nil {
					return nil, err
				}
				in.Input = &pb.GenerateRequest_TokenIds{TokenIds: &pb.TokenIds{Ids: ids}}
				return in, nil
			}
		}
	}
	if err := rpc.Decode(raw, in, fault.Domain); err != nil {
		return nil, err
	}
	return in, nil
}

// findIDs finds the field token_ids of a request, from begin to end, and in it its list as it is packed. It is alone if there is no
// other input, and nothing but one list in it; what is not is left to protobuf.
func findIDs(raw []byte) (begin, end int, list []byte, alone bool) {
	input := tokenIDsField.ContainingOneof().Fields()
	for at := 0; at < len(raw); {
		number, kind, tag := protowire.ConsumeTag(raw[at:])
		if tag < 0 {
			return 0, 0, nil, false
		}
		size := protowire.ConsumeFieldValue(number, kind, raw[at+tag:])
		if size < 0 {
			return 0, 0, nil, false
		}
		next := at + tag + size
		if input.ByNumber(number) != nil {
			if alone || number != tokenIDsField.Number() || kind != protowire.BytesType {
				return 0, 0, nil, false
			}
			body, _ := protowire.ConsumeBytes(raw[at+tag:])
			if list, alone = onlyList(body, idsNumber); !alone {
				return 0, 0, nil, false
			}
			begin, end = at, next
		}
		at = next
	}
	return begin, end, list, alone
}

// onlyList is the packed list of a message that holds nothing else.
func onlyList(body []byte, number protoreflect.FieldNumber) (list []byte, ok bool) {
	is, kind, tag := protowire.ConsumeTag(body)
	if tag < 0 || is != number || kind != protowire.BytesType {
		return nil, false
	}
	list, size := protowire.ConsumeBytes(body[tag:])
	return list, size == len(body)-tag
}

// readIDs reads packed varints, two at once from eight bytes where both have up to four. False: there is one that is no id.
func readIDs(list []byte) (ids []uint32, ok bool) {
	const last = 0x8080808080808080 // of each byte: it is the last of its varint if the bit is not set
	count, at := 0, 0
	for ; at+8 <= len(list); at += 8 {
		count += bits.OnesCount64(^binary.LittleEndian.Uint64(list[at:]) & last)
	}
	ids = make([]uint32, count+len(list)-at)
	count = 0
	for len(list) > 0 {
		if len(list) >= 8 {
			word := binary.LittleEndian.Uint64(list)
			ends := ^word & last
			second := ends & (ends - 1)
			if n, both := bits.TrailingZeros64(ends)+1, bits.TrailingZeros64(second)+1; second != 0 && n <= 32 && both-n <= 32 {
				ids[count] = group(word & (1<<n - 1))
				ids[count+1] = group(word & (math.MaxUint64 >> (64 - both)) >> n)
				list, count = list[both/8:], count+2
				continue
			}
		}
		v, n := protowire.ConsumeVarint(list)
		if n < 0 || v > math.MaxUint32 {
			return nil, false
		}
		ids[count] = uint32(v)
		list, count = list[n:], count+1
	}
	return ids[:count], true
}

// group is the value of a varint of up to four bytes.
func group(v uint64) uint32 { return uint32(v&0x7f | v>>1&0x3f80 | v>>2&0x1fc000 | v>>3&0xfe00000) }
