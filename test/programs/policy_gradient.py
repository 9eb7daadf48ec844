"""REINFORCE with a value as its baseline, on a pole that is to be held upright; the episodes' lengths differ."""
from collections import namedtuple
from itertools import count

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.distributions import Categorical

SavedAction = namedtuple("SavedAction", ["log_prob", "value"])
eps = np.finfo(np.float32).eps.item()


class Pole:
    """A pole on a hinge that is pushed to the left or to the right: (angle, speed) and a reward of 1 a step."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def reset(self):
        self.state = self.rng.uniform(-0.1, 0.1, 2)
        return self.state.astype(np.float32), {}

    def step(self, action):
        angle, speed = self.state
        speed += 0.3 * np.sin(angle) + (0.15 if action == 1 else -0.15)
        self.state = np.array([angle + 0.2 * speed, speed])
        done = bool(abs(self.state[0]) > 0.35)
        return self.state.astype(np.float32), 1.0, done, False, {}


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine1 = nn.Linear(2, 24)
        self.action_head, self.value_head = nn.Linear(24, 2), nn.Linear(24, 1)
        self.saved_actions, self.rewards, self.entropies = [], [], []

    def forward(self, x):
        x = F.relu(self.affine1(x))
        return F.softmax(self.action_head(x), dim=-1), self.value_head(x)


def build():
    return Policy()


def select_action(model, state):
    state = torch.from_numpy(state).float()
    probs, state_value = model(state)
    m = Categorical(probs)
    action = m.sample()
    model.saved_actions.append(SavedAction(m.log_prob(action), state_value))
    model.entropies.append(m.entropy())
    return action.item()


def finish_episode(model, optimizer, gamma=0.99):
    R, returns, policy_losses, value_losses = 0, [], [], []
    for r in model.rewards[::-1]:
        R = r + gamma * R
        returns.insert(0, R)
    returns = torch.tensor(returns)
    returns = (returns - returns.mean()) / (returns.std() + eps)
    for (log_prob, value), R in zip(model.saved_actions, returns):
        advantage = R - value.item()
        policy_losses.append(-log_prob * advantage)
        value_losses.append(F.smooth_l1_loss(value, torch.tensor([R])))
    optimizer.zero_grad()
    loss = torch.stack(policy_losses).sum() + torch.stack(value_losses).sum()
    loss = loss - 0.01 * torch.stack(model.entropies).mean()
    loss.backward()
    optimizer.step()
    model.rewards.clear()
    del model.saved_actions[:], model.entropies[:]
    return loss.item()


def train(model, episodes=50):
    env = Pole(543)
    torch.manual_seed(543)
    optimizer = optim.Adam(model.parameters(), lr=3e-2)
    running_reward, losses = 10, []
    for i_episode in count(1):
        state, _ = env.reset()
        ep_reward = 0
        for t in range(1, 40):
            action = select_action(model, state)
            state, reward, done, _, _ = env.step(action)
            model.rewards.append(reward)
            ep_reward += reward
            if done:
                break
        running_reward = 0.05 * ep_reward + (1 - 0.05) * running_reward
        losses.append(finish_episode(model, optimizer))
        if i_episode % 10 == 0:
            print("Episode {}\tLast reward: {:.2f}\tAverage reward: {:.2f}".format(
                i_episode, ep_reward, running_reward))
        if i_episode == episodes:
            return losses


if __name__ == "__main__":
    train(build())
