package simkafka

import (
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const gone = 2 * time.Second // after which a broker that is down is not listed any more

func (c *Cluster) metadata(b *broker, req *kmsg.MetadataRequest) kmsg.Response {
	res := req.ResponseKind().(*kmsg.MetadataResponse)
	res.ControllerID = -1
	for _, o := range c.brokers {
		if o.up || time.Since(o.changed) < gone {
			res.Brokers = append(res.Brokers, kmsg.MetadataResponseBroker{NodeID: o.id, Host: o.host, Port: port})
			res.ControllerID = o.id
		}
	}
	for _, rt := range req.Topics {
		mt := kmsg.NewMetadataResponseTopic()
		mt.Topic = rt.Topic
		t := c.topics[*rt.Topic]
		if t == nil {
			mt.ErrorCode = kerr.UnknownTopicOrPartition.Code
			res.Topics = append(res.Topics, mt)
			continue
		}
		mt.TopicID = t.id
		for _, p := range t.parts {
			mp := kmsg.NewMetadataResponseTopicPartition()
			mp.Partition, mp.Leader, mp.LeaderEpoch = p.index, p.seenBy(b), p.epoch
			mp.Replicas, mp.ISR = p.replicas, p.isr
			if mp.Leader < 0 {
				mp.ErrorCode = kerr.LeaderNotAvailable.Code
			}
			mt.Partitions = append(mt.Partitions, mp)
		}
		res.Topics = append(res.Topics, mt)
	}
	return res
}

// seenBy is who leads the partition as far as a broker knows: some hear of it late.
func (p *partition) seenBy(b *broker) int32 {
	if lag := time.Duration((int(b.id)*131+int(p.epoch)*71)%300) * time.Millisecond; time.Since(p.moved) < lag {
		return p.before
	}
	return p.leader
}

func (c *Cluster) describe(req *kmsg.DescribeConfigsRequest) kmsg.Response {
	res := req.ResponseKind().(*kmsg.DescribeConfigsResponse)
	for _, r := range req.Resources {
		rr := kmsg.NewDescribeConfigsResponseResource()
		rr.ResourceType, rr.ResourceName = r.ResourceType, r.ResourceName
		t := c.topics[r.ResourceName]
		if t == nil {
			rr.ErrorCode = kerr.UnknownTopicOrPartition.Code
			res.Resources = append(res.Resources, rr)
			continue
		}
		for name, value := range map[string]string{
			"max.message.bytes":   strconv.Itoa(t.maxBytes),
			"min.insync.replicas": strconv.Itoa(t.minISR),
			"cleanup.policy":      "delete",
		} {
			if r.ConfigNames == nil || slices.Contains(r.ConfigNames, name) {
				e := kmsg.NewDescribeConfigsResponseResourceConfig()
				e.Name, e.Value = name, &value
				rr.Configs = append(rr.Configs, e)
			}
		}
		res.Resources = append(res.Resources, rr)
	}
	return res
}

func (c *Cluster) createTopics(req *kmsg.CreateTopicsRequest) kmsg.Response {
	res := req.ResponseKind().(*kmsg.CreateTopicsResponse)
	for _, r := range req.Topics {
		rt := kmsg.NewCreateTopicsResponseTopic()
		rt.Topic = r.Topic
		if c.topics[r.Topic] != nil {
			rt.ErrorCode = kerr.TopicAlreadyExists.Code
		} else {
			minISR := c.cfg.MinISR
			for _, cfg := range r.Configs {
				if cfg.Name == "min.insync.replicas" && cfg.Value != nil {
					minISR, _ = strconv.Atoi(*cfg.Value)
				}
			}
			c.note("topic %s is created", r.Topic)
			c.create(r.Topic, int(r.NumPartitions), int(r.ReplicationFactor), minISR)
		}
		res.Topics = append(res.Topics, rt)
	}
	return res
}
