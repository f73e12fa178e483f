package sink

import "strconv"

// action is what the producer does about an error code in an answer.
type action uint8

const (
	done       action = iota // success
	retry                    // the same bytes again, by back-off
	refresh                  // ask who leads the partition, then the same bytes again
	newID                    // a fresh producer id for the partition, then the same records again
	tooLarge                 // halve the batch until one record stands alone; that one is poison
	poison                   // the record can never be appended
	operator                 // say once what to do, and keep trying: somebody has to act
	endSession               // the producer's transaction is lost: start over from the saved position
	fatal                    // sending again would never help
)

func (a action) String() string {
	return [...]string{"ok", "retry", "refresh", "new id", "too large", "poison", "wait for operator", "end session", "fatal"}[a]
}

// code is one error code of the Kafka protocol and what it means for us.
type code struct {
	number int16
	name   string
	action action
	why    string
}

// foreign codes answer consumers, brokers or administrators, never a producer. The
// default of a producer that must not lose anything is to try again.
const foreign = "not an answer to a producer: named in the log and tried again"

// firstCode is the number of codes[0]; the numbers have no gaps.
const firstCode = -1

// lookup returns the row of a code. Codes that are newer than this table are tried again.
func lookup(number int16) code {
	if i := int(number) - firstCode; i >= 0 && i < len(codes) {
		return codes[i]
	}
	return code{number, "CODE_" + strconv.Itoa(int(number)), retry, "newer than this program: tried again"}
}

// codes is every error code of the protocol as Kafka 4.3 defines them
// (org.apache.kafka.common.protocol.Errors). It drives the producer, and it is its documentation.
//
// "The same bytes" never land twice: the brokers recognise producer id, epoch and
// sequence of a sealed batch and answer a repetition like the first time, or with
// DUPLICATE_SEQUENCE_NUMBER.
var codes = [...]code{
	{-1, "UNKNOWN_SERVER_ERROR", retry, "the broker failed inside; whether it appended is unknown, the same bytes settle it"},
	{0, "NONE", done, "appended and replicated"},
	{1, "OFFSET_OUT_OF_RANGE", retry, foreign},
	{2, "CORRUPT_MESSAGE", retry, "the checksum did not hold on arrival: damaged on the way, the bytes here are whole"},
	{3, "UNKNOWN_TOPIC_OR_PARTITION", refresh, "the topic is being created or deleted, or the broker has not heard of it yet"},
	{4, "INVALID_FETCH_SIZE", retry, foreign},
	{5, "LEADER_NOT_AVAILABLE", refresh, "an election is going on"},
	{6, "NOT_LEADER_OR_FOLLOWER", refresh, "the leader has moved; what it appended may have survived, the sequence tells"},
	{7, "REQUEST_TIMED_OUT", retry, "appended, but not replicated in time: the same bytes become a duplicate or complete"},
	{8, "BROKER_NOT_AVAILABLE", refresh, "the broker left the cluster"},
	{9, "REPLICA_NOT_AVAILABLE", refresh, "the broker has lost the replica"},
	{10, "MESSAGE_TOO_LARGE", tooLarge, "the record batch exceeds max.message.bytes"},
	{11, "STALE_CONTROLLER_EPOCH", retry, "a controller change is under way inside the cluster"},
	{12, "OFFSET_METADATA_TOO_LARGE", retry, foreign},
	{13, "NETWORK_EXCEPTION", refresh, "the broker dropped a connection inside the cluster"},
	{14, "COORDINATOR_LOAD_IN_PROGRESS", retry, "the coordinator reads its log after a start"},
	{15, "COORDINATOR_NOT_AVAILABLE", retry, "the coordinator's partition has no leader yet"},
	{16, "NOT_COORDINATOR", retry, "the coordinator has moved; the connection layer looks it up again"},
	{17, "INVALID_TOPIC_EXCEPTION", poison, "no topic can have this name"},
	{18, "RECORD_LIST_TOO_LARGE", tooLarge, "the record batch exceeds segment.bytes"},
	{19, "NOT_ENOUGH_REPLICAS", retry, "fewer in-sync replicas than min.insync.replicas; nothing was appended"},
	{20, "NOT_ENOUGH_REPLICAS_AFTER_APPEND", retry, "appended, then too few in-sync replicas: the same bytes complete when they are back"},
	{21, "INVALID_REQUIRED_ACKS", fatal, "the broker refuses acks=all, without which nothing can be confirmed"},
	{22, "ILLEGAL_GENERATION", retry, foreign},
	{23, "INCONSISTENT_GROUP_PROTOCOL", retry, foreign},
	{24, "INVALID_GROUP_ID", retry, foreign},
	{25, "UNKNOWN_MEMBER_ID", retry, foreign},
	{26, "INVALID_SESSION_TIMEOUT", retry, foreign},
	{27, "REBALANCE_IN_PROGRESS", retry, foreign},
	{28, "INVALID_COMMIT_OFFSET_SIZE", retry, foreign},
	{29, "TOPIC_AUTHORIZATION_FAILED", operator, "the principal may not write to the topic"},
	{30, "GROUP_AUTHORIZATION_FAILED", operator, "the principal may not use the group"},
	{31, "CLUSTER_AUTHORIZATION_FAILED", operator, "the principal may not write idempotently (brokers before 2.8 ask for IdempotentWrite on the cluster)"},
	{32, "INVALID_TIMESTAMP", poison, "the timestamp is outside of the topic's message.timestamp limits"},
	{33, "UNSUPPORTED_SASL_MECHANISM", operator, "the listener does not offer the configured SASL mechanism"},
	{34, "ILLEGAL_SASL_STATE", operator, "the listener wants another authentication than is configured"},
	{35, "UNSUPPORTED_VERSION", fatal, "the broker is too old for record batches with headers and sequences (Kafka 0.11)"},
	{36, "TOPIC_ALREADY_EXISTS", retry, "somebody else created the topic first: it is there when it is asked for again"},
	{37, "INVALID_PARTITIONS", operator, "the topic cannot be created with this number of partitions"},
	{38, "INVALID_REPLICATION_FACTOR", operator, "the topic cannot be created with more replicas than there are brokers"},
	{39, "INVALID_REPLICA_ASSIGNMENT", operator, "the topic cannot be created with this replica assignment"},
	{40, "INVALID_CONFIG", operator, "the topic cannot be created with this configuration"},
	{41, "NOT_CONTROLLER", refresh, "the controller has moved"},
	{42, "INVALID_REQUEST", fatal, "the broker cannot read what we write: the same bytes will be refused again"},
	{43, "UNSUPPORTED_FOR_MESSAGE_FORMAT", operator, "the topic's message.format.version is below 0.11"},
	{44, "POLICY_VIOLATION", operator, "a policy of the cluster refuses the topic"},
	{45, "OUT_OF_ORDER_SEQUENCE_NUMBER", newID, "the broker lost what it had acknowledged, or the topic was created anew"},
	{46, "DUPLICATE_SEQUENCE_NUMBER", done, "an earlier attempt has been appended"},
	{47, "INVALID_PRODUCER_EPOCH", newID, "the producer id's epoch is old; in a transaction: another relay took over, or the coordinator timed it out"},
	{48, "INVALID_TXN_STATE", endSession, "only a transactional producer: its transaction is gone"},
	{49, "INVALID_PRODUCER_ID_MAPPING", endSession, "only a transactional producer: its id expired or moved on"},
	{50, "INVALID_TRANSACTION_TIMEOUT", fatal, "the brokers' transaction.max.timeout.ms is below the 40 s that a transaction of ours may take: raise it"},
	{51, "CONCURRENT_TRANSACTIONS", retry, "the transaction before is still being completed"},
	{52, "TRANSACTION_COORDINATOR_FENCED", retry, "the transaction coordinator has moved"},
	{53, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", operator, "the principal may not use the transactional id"},
	{54, "SECURITY_DISABLED", operator, "the cluster has no authorizer for what was asked"},
	{55, "OPERATION_NOT_ATTEMPTED", retry, "the broker gave up on the request before its turn came"},
	{56, "KAFKA_STORAGE_ERROR", refresh, "the leader's disk failed; another replica takes over"},
	{57, "LOG_DIR_NOT_FOUND", refresh, "the leader's disk is gone; another replica takes over"},
	{58, "SASL_AUTHENTICATION_FAILED", operator, "the credentials were refused"},
	{59, "UNKNOWN_PRODUCER_ID", newID, "the broker has forgotten the producer id (producer.id.expiration.ms)"},
	{60, "REASSIGNMENT_IN_PROGRESS", retry, "the partition's replicas are being moved"},
	{61, "DELEGATION_TOKEN_AUTH_DISABLED", retry, foreign},
	{62, "DELEGATION_TOKEN_NOT_FOUND", retry, foreign},
	{63, "DELEGATION_TOKEN_OWNER_MISMATCH", retry, foreign},
	{64, "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED", retry, foreign},
	{65, "DELEGATION_TOKEN_AUTHORIZATION_FAILED", retry, foreign},
	{66, "DELEGATION_TOKEN_EXPIRED", retry, foreign},
	{67, "INVALID_PRINCIPAL_TYPE", retry, foreign},
	{68, "NON_EMPTY_GROUP", retry, foreign},
	{69, "GROUP_ID_NOT_FOUND", retry, foreign},
	{70, "FETCH_SESSION_ID_NOT_FOUND", retry, foreign},
	{71, "INVALID_FETCH_SESSION_EPOCH", retry, foreign},
	{72, "LISTENER_NOT_FOUND", refresh, "the leader does not listen where it was looked for"},
	{73, "TOPIC_DELETION_DISABLED", retry, foreign},
	{74, "FENCED_LEADER_EPOCH", refresh, "the leader's epoch is newer than ours"},
	{75, "UNKNOWN_LEADER_EPOCH", refresh, "the leader's epoch is older than ours"},
	{76, "UNSUPPORTED_COMPRESSION_TYPE", fatal, "the broker does not know the codec: choose another --compression"},
	{77, "STALE_BROKER_EPOCH", retry, "the broker is registering anew"},
	{78, "OFFSET_NOT_AVAILABLE", retry, "the leader is new and catches up"},
	{79, "MEMBER_ID_REQUIRED", retry, foreign},
	{80, "PREFERRED_LEADER_NOT_AVAILABLE", refresh, "an election is going on"},
	{81, "GROUP_MAX_SIZE_REACHED", retry, foreign},
	{82, "FENCED_INSTANCE_ID", retry, foreign},
	{83, "ELIGIBLE_LEADERS_NOT_AVAILABLE", refresh, "an election is going on"},
	{84, "ELECTION_NOT_NEEDED", refresh, "an election is going on"},
	{85, "NO_REASSIGNMENT_IN_PROGRESS", retry, foreign},
	{86, "GROUP_SUBSCRIBED_TO_TOPIC", retry, foreign},
	{87, "INVALID_RECORD", poison, "the broker's validation refuses the record (no key on a compacted topic, for one)"},
	{88, "UNSTABLE_OFFSET_COMMIT", retry, foreign},
	{89, "THROTTLING_QUOTA_EXCEEDED", retry, "a quota; the connection layer waits as long as it was told"},
	{90, "PRODUCER_FENCED", endSession, "another relay took over, or the coordinator timed the transaction out"},
	{91, "RESOURCE_NOT_FOUND", retry, foreign},
	{92, "DUPLICATE_RESOURCE", retry, foreign},
	{93, "UNACCEPTABLE_CREDENTIAL", retry, foreign},
	{94, "INCONSISTENT_VOTER_SET", retry, foreign},
	{95, "INVALID_UPDATE_VERSION", retry, foreign},
	{96, "FEATURE_UPDATE_FAILED", retry, foreign},
	{97, "PRINCIPAL_DESERIALIZATION_FAILURE", operator, "the brokers cannot read each other's principals: their security set-up differs"},
	{98, "SNAPSHOT_NOT_FOUND", retry, foreign},
	{99, "POSITION_OUT_OF_RANGE", retry, foreign},
	{100, "UNKNOWN_TOPIC_ID", refresh, "the topic was created anew"},
	{101, "DUPLICATE_BROKER_REGISTRATION", retry, foreign},
	{102, "BROKER_ID_NOT_REGISTERED", retry, foreign},
	{103, "INCONSISTENT_TOPIC_ID", refresh, "the topic was created anew"},
	{104, "INCONSISTENT_CLUSTER_ID", operator, "the address leads to another cluster"},
	{105, "TRANSACTIONAL_ID_NOT_FOUND", retry, foreign},
	{106, "FETCH_SESSION_TOPIC_ID_ERROR", retry, foreign},
	{107, "INELIGIBLE_REPLICA", retry, "the leader is negotiating its in-sync replicas"},
	{108, "NEW_LEADER_ELECTED", refresh, "the leader has moved"},
	{109, "OFFSET_MOVED_TO_TIERED_STORAGE", retry, foreign},
	{110, "FENCED_MEMBER_EPOCH", retry, foreign},
	{111, "UNRELEASED_INSTANCE_ID", retry, foreign},
	{112, "UNSUPPORTED_ASSIGNOR", retry, foreign},
	{113, "STALE_MEMBER_EPOCH", retry, foreign},
	{114, "MISMATCHED_ENDPOINT_TYPE", retry, foreign},
	{115, "UNSUPPORTED_ENDPOINT_TYPE", retry, foreign},
	{116, "UNKNOWN_CONTROLLER_ID", retry, foreign},
	{117, "UNKNOWN_SUBSCRIPTION_ID", retry, foreign},
	{118, "TELEMETRY_TOO_LARGE", retry, foreign},
	{119, "INVALID_REGISTRATION", retry, foreign},
	{120, "TRANSACTION_ABORTABLE", endSession, "only a transactional producer: abort and start over"},
	{121, "INVALID_RECORD_STATE", retry, foreign},
	{122, "SHARE_SESSION_NOT_FOUND", retry, foreign},
	{123, "INVALID_SHARE_SESSION_EPOCH", retry, foreign},
	{124, "FENCED_STATE_EPOCH", retry, foreign},
	{125, "INVALID_VOTER_KEY", retry, foreign},
	{126, "DUPLICATE_VOTER", retry, foreign},
	{127, "VOTER_NOT_FOUND", retry, foreign},
	{128, "INVALID_REGULAR_EXPRESSION", retry, foreign},
	{129, "REBOOTSTRAP_REQUIRED", refresh, "what is known of the cluster is too old"},
	{130, "STREAMS_INVALID_TOPOLOGY", retry, foreign},
	{131, "STREAMS_INVALID_TOPOLOGY_EPOCH", retry, foreign},
	{132, "STREAMS_TOPOLOGY_FENCED", retry, foreign},
	{133, "SHARE_SESSION_LIMIT_REACHED", retry, foreign},
}
